"""The command `serve`: decides between one process, a parent and its child; signals, and the
greeting at the start."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from trading_intents import __version__, app, config, provision
from trading_intents.config import Settings
from trading_intents.errors import PortTaken, StartupRefused
from trading_intents.processes.child import ChildPart, serve_child
from trading_intents.processes.parent import supervise
from trading_intents.storage.embedded.server import lock_holder
from trading_intents.telemetry import Log, terminal_text

STOPPED_AT_ONCE = 130
FIRST_ORDER = "buy AAPL 10 --wait"
PROGRAM = Path(".venv/bin/trading-intents")  # in a checkout, where `make run` is typed


def add_serve_command(cli: typer.Typer, run: Callable[..., None]) -> None:
    @cli.command()
    def serve(
        roles: Annotated[str, typer.Option(help="api, stream, worker; comma separated.")] = "",
        child: Annotated[str, typer.Option(hidden=True)] = "",
    ) -> None:
        """Start this process's roles and serve until SIGTERM, SIGHUP or Ctrl-C."""
        part = msgspec.json.decode(child, type=ChildPart) if child else None
        if part:
            part.die_with_parent()

        async def work(settings: Settings, log: Log) -> None:
            stop = _stop_signal(stops_at_once=part is None)
            if part:
                await serve_child(part, settings, log, stop)
                return
            serve_roles = supervise if settings.count_workers() else app.serve
            try:
                await serve_roles(settings, log, stop, provision.prepare_demo, partial(_greet, log))
            except PortTaken as error:
                pid = None if settings.database_url else lock_holder(settings.data_dir)
                if pid is None:
                    raise
                where = f"already running here, pid {pid}, on {settings.data_dir}"
                raise StartupRefused(f"{where}; {error.detail}") from None

        run(work, roles, quiet=False, process=part.name if part else "")


def _stop_signal(stops_at_once: bool) -> asyncio.Event:
    """Is set by a signal. A second one ends this process at once, unless it is left to its parent:
    a service manager signals all processes, and the parent signals its own as well."""
    stop = asyncio.Event()
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        # Does not count as one of the two signals that stop at once: a closing terminal sends it
        # more than once.
        loop.add_signal_handler(signal.SIGHUP, stop.set)

    def on_signal() -> None:
        if signalled.is_set() and stops_at_once:
            # The kernel ends the embedded PostgreSQL, and the children of a parent, together with
            # this process.
            os._exit(STOPPED_AT_ONCE)
        signalled.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def _greet(log: Log, settings: Settings, demo: provision.Demo | None) -> None:
    url = settings.http_url
    workers = settings.count_workers()
    grpc = settings.grpc_address if "stream" in settings.roles else ""
    if demo:
        provision.keep_demo_url(settings.data_dir, url)
    if not sys.stderr.isatty():
        where = {"http": url} | ({"grpc": grpc} if grpc else {})
        log.info(
            "serving", version=__version__, **where, roles=list(settings.roles), pid=os.getpid()
        )
        return
    storage = f"embedded PostgreSQL in {settings.data_dir}"
    if settings.database_url:
        storage = "external database"
    out = Console(stderr=True, highlight=False)
    out.print(f"\n[bold green]Trading Intents Platform[/] {__version__} is ready\n")
    out.print(f"  HTTP    [bold]{url}[/]   (open it in a browser)")
    if grpc:
        out.print(f"  gRPC    [bold]{grpc}[/]")
    processes = "process" if workers == 1 else "processes"
    apart = f"   ({workers} {processes} of workers)" if workers else ""
    out.print(f"  roles   {', '.join(settings.roles)}{apart}")
    out.print(f"  data    {terminal_text(storage)}\n", soft_wrap=True)
    if demo and demo.account_id:
        variable = config.PREFIX + "DATA_DIR"
        folder = f"{variable}={settings.data_dir} " if variable in os.environ else ""
        out.print("Place a first order, in another terminal:\n")
        program = PROGRAM if PROGRAM.exists() else PROGRAM.name
        out.print(f"  {terminal_text(folder)}{program} {FIRST_ORDER}\n", soft_wrap=True)
        out.print("Or trade in the browser; this prints a link that signs you in:\n")
        out.print(f"  {terminal_text(folder)}{program} console\n", soft_wrap=True)
    out.print("README.md goes on from there. Ctrl-C ends all of it.\n")
