"""The parent of a platform's processes: runs PostgreSQL, starts them, restarts one that fails, ends
them in order. It serves no request, so that nothing of a caller's can hold it up."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from prometheus_client import start_http_server

from trading_intents import app
from trading_intents.config import PREFIX, Settings
from trading_intents.errors import StartupRefused
from trading_intents.loops import interrupted_by, pause_after
from trading_intents.processes.child import PARENT, READY, ChildPart
from trading_intents.storage.embedded.server import stop_process
from trading_intents.telemetry import Log, Metrics
from trading_intents.web.server.listener import bind

Demo = TypeVar("Demo")

LOOPBACK = "127.0.0.1"
# A frozen child goes on, to drain like the others; one that hangs is killed when a drain must be
# over.
STOP_STEPS = (
    (signal.SIGTERM, 0.0),
    (signal.SIGCONT, app.DRAIN_SECONDS + 5.0),
    (signal.SIGKILL, 2.0),
)
OWN_METRICS = ("ti_process_up", "ti_process_starts_total", "ti_embedded_postgres_starts_total")
RESTART_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_SECONDS = 60.0  # a process that ran so long is restarted with the first pause again


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    roles: str
    # Stays bound while the process is restarted: connections wait in the kernel meanwhile.
    listener: socket.socket
    url: str
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # set for good when it first serves


async def supervise(
    settings: Settings,
    log: Log,
    stop: asyncio.Event,
    prepare: Callable[[app.Infrastructure], Awaitable[Demo]],
    greet: Callable[[Settings, Demo], None],
) -> None:
    """Runs all roles in processes of their own, until `stop` is set; `prepare` and `greet` as in
    `app.serve`."""
    with app.ended_by_loops(log, stop), contextlib.ExitStack() as sockets:
        listener, settings = app.take_ports(settings, sockets)
        front = ",".join(role for role in settings.roles if role != "worker")
        children = [
            Child("api" if "api" in front else "stream", front, listener, settings.http_url)
        ]
        for number in range(settings.count_workers()):
            own = sockets.enter_context(contextlib.closing(bind(LOOPBACK, 0)))
            url = f"http://{LOOPBACK}:{own.getsockname()[1]}"
            children.append(Child(f"worker-{number + 1}", "worker", own, url))
        metrics = Metrics()
        async with (
            interrupted_by(stop) as interrupt,
            app.database_urls(settings, log, metrics, may_create=True),
        ):
            async with app.open_infrastructure(settings, log, may_create=True) as infra:  # migrates
                demo = await prepare(infra)

            def on_ready() -> None:
                interrupt.cancel()
                greet(settings, demo)

            await _ChildProcesses(settings, log, metrics, children).run(stop, on_ready)
            # Callers that come now are refused, and do not wait for PostgreSQL's end.
            sockets.close()


class _ChildProcesses:
    def __init__(
        self, settings: Settings, log: Log, metrics: Metrics, children: list[Child]
    ) -> None:
        self._log = log
        self._starts = metrics.process_starts
        self._children = children
        chosen = {"HTTP_PORT": settings.http_port, "GRPC_PORT": settings.grpc_port}
        self._environ = os.environ | {PREFIX + name: str(value) for name, value in chosen.items()}
        server, _ = start_http_server(
            0, LOOPBACK, metrics.registry.restricted_registry(OWN_METRICS)
        )
        self._others = {child.name: child.url for child in children[1:]}
        self._others[PARENT] = f"http://{LOOPBACK}:{server.server_port}"

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Keeps all of them running until `stop` is set, then ends them. StartupRefused if one
        never serves."""
        try:
            async with asyncio.TaskGroup() as group:
                keeping = [group.create_task(self._keep(child)) for child in self._children]
                for child in self._children:
                    await child.ready.wait()
                on_ready()
                await stop.wait()
                self._log.info("draining")
                for task in keeping:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            await self._run_once(child)
            if not child.ready.is_set():
                raise StartupRefused(f"{child.name} has not started; its reason is above")
            failures = 0 if loop.time() - began >= STEADY_SECONDS else failures
            await asyncio.sleep(pause_after(RESTART_SECONDS, failures))
            failures += 1

    async def _run_once(self, child: Child) -> None:
        others = self._others if child is self._children[0] else {}
        descriptor = child.listener.fileno()
        child_part = ChildPart(child.name, os.getpid(), descriptor, others)
        part = msgspec.json.encode(child_part).decode()
        # -P: a file in the current folder must not replace a module.
        command = [
            sys.executable,
            "-P",
            "-m",
            "trading_intents",
            "serve",
            "--roles",
            child.roles,
            "--child",
            part,
        ]
        self._starts.labels(child.name).inc()
        try:
            # A session of its own, so that Ctrl-C in a terminal reaches only us.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stdout=PIPE,
                env=self._environ,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        except OSError as error:
            self._log.error("process not started", child=child.name, reason=str(error))
            return
        assert process.stdout is not None
        try:
            if await process.stdout.read(len(READY)):  # nothing: it has ended
                child.ready.set()
            await process.wait()
        finally:
            has_failed = process.returncode is not None
            await stop_process(process, STOP_STEPS)
            is_wrong = has_failed or process.returncode == -signal.SIGKILL
            log = self._log.error if is_wrong else self._log.info
            log("process ended", child=child.name, pid=process.pid, status=process.returncode)
