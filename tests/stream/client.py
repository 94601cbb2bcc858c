"""A plain grpcio client made from the proto file alone: it shares no code with the server."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0
ORDER = 1
POSITION = 2
TRADE = 3
ACTION = 4
BALANCE = 5
HALT = 6
ALL = (ORDER, POSITION, TRADE, ACTION)
PRIMED = 2
NEW = 1  # PENDING_NEW, as every order is placed


@cache
def messages() -> Mapping[str, Any]:
    """The proto's messages, in a descriptor pool of their own."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "trading.bin"
        command = [
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'proto'}",
            "--include_imports",
            f"--descriptor_set_out={out}",
        ]
        subprocess.run([sys.executable, *command, "trading.proto"], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = ("Subscribe", "Unsubscribe", "StreamEventsRequest", "TradingEvent")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"trading.{name}"))
        for name in names
    }


def kind_of(event: Any) -> str:
    return str(event.WhichOneof("event"))


def body_of(event: Any) -> Any:
    return getattr(event, kind_of(event))


def subscribe(account: str = "", kinds: Iterable[int] = ALL, **fields: Any) -> Any:
    return messages()["Subscribe"](trading_account_id=account, subscriptions=kinds, **fields)


class Follower:
    """An open stream. Every wait ends with the call's deadline."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __iter__(self) -> Iterator[Any]:
        """Without heartbeats."""
        return (event for event in self.call if kind_of(event) != "heartbeat")

    def take(self, count: int) -> list[Any]:
        events = iter(self)
        return [next(events) for _ in range(count)]

    def take_new(self, count: int) -> list[Any]:
        """Without what becomes of the orders after they were placed."""
        events = (
            e
            for e in self
            if kind_of(e) in ("status", "intent_action") or e.broker_order.order_status == NEW
        )
        return [next(events) for _ in range(count)]

    def until(self, is_last: Callable[[Any], bool]) -> list[Any]:
        found = []
        for event in self:
            found.append(event)
            if is_last(event):
                return found
        raise AssertionError("the stream ended")

    def subscribed(self) -> "Follower":
        """Past the status and the priming of the positions."""
        (first,) = self.take(1)
        assert (kind_of(first), first.status.message, first.cursor) == ("status", "subscribed", "")
        return self

    def ended(self) -> tuple[str, str]:
        """The status that it ends with, and its words; what comes before is passed over."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            call: Any = error  # which it is, too
            return call.code().name, call.details() or ""
        return "OK", ""

    def cancel(self) -> None:
        self.call.cancel()


class Client:
    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        # A connection of its own, so that clients do not share windows.
        options = (("grpc.use_local_subchannel_pool", 1),)
        if credentials:
            self.channel = grpc.secure_channel(address, credentials, options)
        else:
            self.channel = grpc.insecure_channel(address, options)

    def follow(
        self,
        caller: Mapping[str, str],
        account: str = "",
        kinds: Iterable[int] = ALL,
        **fields: Any,
    ) -> Follower:
        return self.send(caller, subscribe(account, kinds, **fields).SerializeToString())

    def send(
        self,
        caller: Mapping[str, str],
        request: bytes,
        limit_seconds: float = LIMIT_SECONDS,
        method: str = "",
    ) -> Follower:
        call: Any = self.channel.unary_stream(
            method or "/trading.TradingService/SubscribeEvents",
            response_deserializer=messages()["TradingEvent"].FromString,
        )
        return Follower(call(request, metadata=tuple(caller.items()), timeout=limit_seconds))

    def stream(self, caller: Mapping[str, str], requests: Iterator[bytes]) -> Follower:
        call: Any = self.channel.stream_stream(
            "/trading.TradingService/StreamEvents",
            response_deserializer=messages()["TradingEvent"].FromString,
        )
        return Follower(call(requests, metadata=tuple(caller.items()), timeout=LIMIT_SECONDS))

    def close(self) -> None:
        self.channel.close()
