"""The gRPC port: its limits, its TLS, its start and stop."""

import asyncio
import os
from typing import Any

import grpc

from trading_intents.errors import StartupRefused
from trading_intents.stream.grpc.public import MAX_PUBLIC_CALLS, PublicServicer
from trading_intents.stream.grpc.subscriptions import MAX_ADMISSIONS, StreamServicer
from trading_intents.web.server.tls import CertificateFiles

MAX_REQUEST_BYTES = 64 * 1024
MAX_METADATA_BYTES = 16 * 1024
KEEPALIVE_MILLIS = 30_000
KEEPALIVE_LIMIT_MILLIS = 10_000
MIN_PING_MILLIS = 10_000
HANDSHAKE_LIMIT_MILLIS = 10_000
IDLE_CONNECTION_MILLIS = 75_000  # without a call, as of HTTP without a request
# More than one caller's streams, so that the 101st is refused with an error: above this number
# clients wait silently.
MAX_CALLS_PER_CONNECTION = 250
STOP_SECONDS = 2.0
REACH_SECONDS = 1.0

OPTIONS = (
    ("grpc.so_reuseport", 0),  # a taken port is refused, not shared
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLIS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_LIMIT_MILLIS),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MILLIS),
    ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_LIMIT_MILLIS),
    ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MILLIS),
)


class GrpcListener:
    """The port, with health and reflection beside the stream. The hub ends the streams; this only
    lets them go."""

    def __init__(
        self,
        transport: StreamServicer,
        max_streams: int,
        max_connections: int,
        host: str,
        port: int,
        files: CertificateFiles | None,
    ) -> None:
        # Protects memory: each part has a smaller limit of its own, which is reached first and has
        # its own error.
        self._max_calls = 2 * (max_streams + MAX_ADMISSIONS + MAX_PUBLIC_CALLS)
        self._options = (*OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections))
        self._servicer = transport
        self._host = host
        self.port = port
        self._files = files
        self._public = PublicServicer()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self.port}"

    async def start(self) -> None:
        # PostgreSQL may be started beside us at any time; grpc's handlers around a fork are only
        # needed if the child uses grpc.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        self._server = server = grpc.aio.server(
            options=self._options, maximum_concurrent_rpcs=self._max_calls
        )
        server.add_generic_rpc_handlers((self._servicer.handler(), *self._public.handlers()))
        try:
            if self._files:
                self.port = server.add_secure_port(self.address, _credentials(self._files))
            else:
                self.port = server.add_insecure_port(self.address)
        except RuntimeError:
            raise StartupRefused(
                f"cannot listen on {self._host} port {self.port}: end what uses it, or set "
                "TRADING_INTENTS_GRPC_HOST and TRADING_INTENTS_GRPC_PORT"
            ) from None
        await server.start()

    async def is_reachable(self) -> bool:
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(self._host, self.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def stop(self) -> None:
        if self._server is not None:
            self._public.stop()
            await self._server.stop(STOP_SECONDS)


def _credentials(files: CertificateFiles) -> Any:
    """Takes a renewed certificate for the next connection."""

    def read() -> Any:
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair])

    def read_renewed() -> Any:
        return read() if files.renew() else None

    return grpc.dynamic_ssl_server_credentials(read(), read_renewed)
