"""A port at which a program of a test will listen, also again after it was killed."""

import contextlib
import random
import socket

# Below those that the kernel gives to outgoing connections: these could take the port meanwhile.
PORTS = range(20_000, 32_768)
MAX_TRIES = 100


def free_port() -> int:
    # Not by the module's own generator: tests that seed it would all get the same port.
    for port in random.SystemRandom().sample(PORTS, MAX_TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
