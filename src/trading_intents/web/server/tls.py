"""TLS: certificates, read again when their files are renewed, and the handshakes of HTTP's
connections, which count as connections from their first byte on."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from socket import socket

from cryptography import x509

from trading_intents.config import Settings
from trading_intents.errors import PlatformError, StartupRefused
from trading_intents.loops import LoopSlots
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.server.connection import FIRST_BYTE_SECONDS, HttpConnection
from trading_intents.web.server.table import MAX_ACCEPTED, ConnectionTable

MAX_HANDSHAKES = 16  # of an address at once; trusted proxies are exempt
# Browsers do not come without TLS again, for a year.
STRICT_TRANSPORT = b"strict-transport-security: max-age=31536000\r\n"
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
    """A connection that cannot have a request yet."""

    def __init__(
        self,
        acceptor: "Acceptor",
        client: socket,
        address: str | None,
    ) -> None:
        self._acceptor = acceptor
        self._client = client
        self._address = address
        acceptor.handshakes[address] += 1
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        table = self._acceptor.table
        try:
            async with asyncio.timeout(FIRST_BYTE_SECONDS):
                await _wait_readable(self._client)
                await self._acceptor.slots.take(table.holder_of(self))
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(
                    lambda: TlsConnection(table, self),
                    self._client,
                    ssl=self._acceptor.files.context,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                )
        except OSError:  # of TLS too, and of the limit
            self._client.close()

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._client.close()
        self._acceptor.table.remove(self)
        handshakes = self._acceptor.handshakes
        handshakes[self._address] -= 1
        if not handshakes[self._address]:
            del handshakes[self._address]

    def check(self, now: float) -> None:
        pass

    def refuse(self, error: PlatformError) -> None:
        self.abort()

    def abort(self) -> None:
        self._task.cancel()

    finish = abort


class Acceptor:
    """Lets few connections of an address be in their handshakes at once, and one address begin one
    in each round of the loop, as each costs a signature."""

    def __init__(
        self,
        table: ConnectionTable,
        files: CertificateFiles,
    ) -> None:
        self.table = table
        self.files = files
        self.slots = LoopSlots[Hashable](0)
        self.handshakes = Counter[str | None]()

    async def run(self, listener: socket) -> None:
        while True:
            await _wait_readable(listener)
            self.files.renew()
            try:
                for _ in range(MAX_ACCEPTED):
                    self._take(*listener.accept())
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError:
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)

    def _take(self, client: socket, peer: tuple[str, int]) -> None:
        client.setblocking(False)
        address = self.table.address_of(peer[0])
        if address and self.handshakes[address] >= MAX_HANDSHAKES:
            self.table.count_excess("address")
            client.close()
        else:
            self.table.add(Handshake(self, client, address), peer[0])


async def _wait_readable(waiting: socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(waiting, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(waiting)
