"""TLS: certificates, read again when their files are renewed, and the handshakes of HTTP's
connections, which count as connections from their first byte on."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from socket import socket

from cryptography import x509

from trading_intents.config import Settings
from trading_intents.errors import StartupRefused
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.server.connection import FIRST_BYTE_SECONDS, HttpConnection
from trading_intents.web.server.table import ConnectionTable

SHUTDOWN_SECONDS = 2.0  # for a client to confirm that the connection ends
WRITE_BUFFER_BYTES = 64 * 1024  # as without TLS; asyncio would take 512 KiB
ACCEPT_AGAIN_SECONDS = 1.0  # after an error such as no free descriptor


class CertificateFiles:
    def __init__(
        self, certificate: str, key: str, setting: str, on_read: Callable[[float], None], log: Log
    ) -> None:
        """`on_read` gets the Unix time at which the certificate expires."""
        self.certificate = Path(certificate)
        self.key = Path(key)
        self._setting = setting
        self._on_read = on_read
        self._log = log
        try:
            self._seen = self._stamps()
            self.context = self._load()
        except (OSError, ValueError) as error:
            raise StartupRefused(
                f"TRADING_INTENTS_{setting}_CERTIFICATE_FILE, _KEY_FILE: {error}"
            ) from None

    def renew(self) -> bool:
        """Loads the files if they changed. Those of a renewal that is half done, or that is wrong,
        are left alone until they change again."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            self._seen = stamps
            self.context = self._load()
        except (OSError, ValueError) as error:
            self._log.warning("certificate not taken", setting=self._setting, reason=str(error))
            return False
        return True

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(self.certificate), _stamp(self.key)]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Else OpenSSL asks at the terminal.
        context.load_cert_chain(self.certificate, self.key, password="")
        leaf = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        self._on_read(leaf.not_valid_after_utc.timestamp())
        return context


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def certificate_files(
    settings: Settings, setting: str, metrics: Metrics, log: Log
) -> CertificateFiles | None:
    """Reads the certificate of a port, HTTP_TLS or gRPC's TLS, if it has one."""
    certificate: str = getattr(settings, f"{setting.lower()}_certificate_file")
    key: str = getattr(settings, f"{setting.lower()}_key_file")
    if not certificate:
        return None
    port = "http" if setting == "HTTP_TLS" else "grpc"
    on_read = metrics.certificate_expires.labels(port).set
    return CertificateFiles(certificate, key, setting, on_read, log)


class TlsConnection(HttpConnection):
    def __init__(self, table: ConnectionTable, handshake: "Handshake") -> None:
        super().__init__(table)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._table.remove(self._handshake)
        super().connection_made(transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def eof_received(self) -> bool:
        super().eof_received()
        return False  # asyncio knows no half-closed TLS


class Handshake:
    """A connection that cannot have a request yet. asyncio ends it at its limit."""

    def __init__(self, table: ConnectionTable, client: socket, context: ssl.SSLContext) -> None:
        self._table = table
        self._task = asyncio.get_running_loop().create_task(self._run(client, context))

    async def _run(self, client: socket, context: ssl.SSLContext) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: TlsConnection(self._table, self),
                client,
                ssl=context,
                ssl_handshake_timeout=FIRST_BYTE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError:  # of TLS too, and of the limit
            client.close()
        finally:
            self._table.remove(self)

    def check(self, now: float) -> None:
        pass

    def abort(self) -> None:
        self._task.cancel()

    def finish(self) -> None:
        self.abort()


async def accept(table: ConnectionTable, listener: socket, files: CertificateFiles) -> None:
    """Accepts one connection in each round of the loop, as each costs a signature."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            client, address = await loop.sock_accept(listener)
        except OSError:
            await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
            continue
        files.renew()
        handshake = Handshake(table, client, files.context)
        if table.add(handshake, address[0]):
            table.remove(handshake)
            handshake.abort()
            client.close()
        await asyncio.sleep(0)
