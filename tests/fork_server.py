"""Our programs, forked from a process that has imported them: what `python -m` runs, without a
second of imports each.

Run as a program, it is that process: python -m tests.fork_server SOCKET
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

PROGRAMS = ("trading_intents.cli", "trading_intents_client.cli.program")  # each has a `cli`
# Our programs, and what these import only when they are at work.
PRELOADED = (
    *(*PROGRAMS, "trading_intents.brokers.paper.broker"),
    *(
        "trading_intents.brokers.alpaca.broker",
        "trading_intents.brokers.fix.broker",
        "typer._click.decorators",
    ),
    *("argparse", "httpcore", "anyio._backends._asyncio", "importlib.readers", "tzdata"),
    "encodings.ascii",
)
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
REQUEST_BYTES = 1 << 17
STATUS_BYTES = 16
END_LIMIT_SECONDS = 10


class Fork:
    """A running program. As subprocess.Popen, but for who its parent is."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environ: Mapping[str, str] = os.environ,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.stdin, zero = _ends(stdin, 0)
        self.stdout, one = _ends(stdout, 1)
        self.stderr, two = _ends(stderr, 2)
        self._status, status = os.pipe()
        weakref.finalize(self, os.close, self._status)
        self.returncode: int | None = None
        self._reading = threading.Lock()
        request = {
            "module": module,
            "arguments": arguments,
            "environ": dict(environ),
            "folder": os.getcwd(),
        }
        self.pid = _nursery().fork(request, [zero, one, two, status])

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        with self._reading:
            if self.returncode is None:
                self.returncode = int(os.read(self._status, STATUS_BYTES))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ends(chosen: int | None, number: int) -> tuple[IO[str] | None, int]:
    """Our end, if it is a pipe, and the program's."""
    if chosen != subprocess.PIPE:
        return None, os.dup(number if chosen is None else chosen)
    reading, writing = os.pipe()
    return (os.fdopen(writing, "w"), reading) if number == 0 else (os.fdopen(reading), writing)


def run(
    module: str, *arguments: str, environ: Mapping[str, str], stdin: str, limit_seconds: float
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run."""
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        files = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        fork = Fork(module, *arguments, environ=environ, **files)
        try:
            fork.wait(limit_seconds)
        finally:
            fork.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            [module, *arguments], fork.wait(), out.read(), err.read()
        )


class Nursery:
    """The process that forks, asked through a socket."""

    def __init__(
        self, channel: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._socket = channel
        self._process = process
        self._asking = threading.Lock()

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            for file in files:
                os.close(file)
            return int(self._socket.recv(STATUS_BYTES))


# The first is ours, others are those of the process that we were forked from.
_nurseries: list[Nursery] = []


def _nursery() -> Nursery:
    if not _nurseries:
        start()
    return _nurseries[0]


def start() -> None:
    """Starts the process, and does not wait until it has imported our programs."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parent.parent
    )
    theirs.close()
    _nurseries.append(Nursery(ours, process))
    atexit.register(process.wait, END_LIMIT_SECONDS)
    atexit.register(ours.close)


def divide() -> tuple[Fork, socket.socket]:
    """A second such process, of one that has imported everything; for a fork of ours, which will
    `adopt` its socket."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        return Fork("tests.fork_server", "0", stdin=theirs.fileno()), ours


def adopt(channel: socket.socket) -> None:
    """It ends when the socket is closed: with this process at the latest."""
    _nurseries.insert(0, Nursery(channel))


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Forks whenever it is asked, reports how each child ended; returns in each child, and here
    when nobody asks more."""
    statuses: dict[int, int] = {}
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            report_ends(statuses)
        if asked not in ready:
            continue
        text, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 4)
        if not text:
            return None
        request: dict[str, Any] = json.loads(text)
        pid = os.fork()
        if pid == 0:
            restore_signals()
            for channel in (asked, woken, wake):
                channel.close()
            for status in (*statuses.values(), files.pop()):
                os.close(status)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        statuses[pid] = files.pop()
        for file in files:
            os.close(file)
        asked.sendall(str(pid).encode())


def restore_signals() -> None:
    """As an interpreter finds them that was started from a terminal."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def report_ends(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = statuses.pop(pid)
        os.write(file, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(file)


def main() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    build_commands_once()
    gc.freeze()  # else each child's collector copies every page
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv[1:] = request["arguments"]
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    end(run_to_the_end(request["module"]))


def build_commands_once() -> None:
    """Each child would build the tree of all commands: a fourth of what its start takes of the
    processor."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)
    for name in PROGRAMS:
        typer.main.get_command(sys.modules[name].cli)


def run_to_the_end(module: str) -> int:
    """As the interpreter does, and what it would end with."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> NoReturn:
    """All that shows of an interpreter's end. The rest is to give back memory, piece by piece: 60
    ms."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons; has no public name
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
