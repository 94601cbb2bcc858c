"""Runs a program that listens on all interfaces where there is none but a loopback of its own, and
relays a UNIX socket to its port: `unshare --map-root-user --net python in_namespace.py SOCKET PORT
PROGRAM...`."""

import asyncio
import fcntl
import socket
import struct
import sys

SET_FLAGS = 0x8914
IS_UP = 1
CONNECT_SECONDS = 60.0
PAUSE_SECONDS = 0.05


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", IS_UP))


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main(path: str, port: int, *program: str) -> None:
    raise_loopback()
    running = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await connect(port)
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    await connect(port)  # it listens
    await asyncio.start_unix_server(relay, path)
    await running.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
