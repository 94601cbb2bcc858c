"""The operator's commands, loaded by `trading-intents` beside a trader's: parse, call, print. An
expected failure is one line on standard error and exit code 1, or 2 where there is no database."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import Progress
from typer.core import TyperGroup

from trading_intents import app, config, doctor, provision
from trading_intents.accounts.rotation import rotate
from trading_intents.accounts.vault import embedded_vault
from trading_intents.accounts.vault.master_keys import RETIRE_AFTER_SECONDS
from trading_intents.brokers.port import OperatorContext
from trading_intents.brokers.registry import broker_command_groups, integration_names
from trading_intents.clock import rfc3339
from trading_intents.config import Settings
from trading_intents.errors import DatabaseMissing, InvalidRequest, PlatformError
from trading_intents.execution.restored.store import is_connected
from trading_intents.intents import audit
from trading_intents.outbox import operators
from trading_intents.outbox.model import Queue, Status, channel
from trading_intents.outbox.queue import MAX_LISTED, list_rows
from trading_intents.processes.child import PARENT
from trading_intents.processes.command import add_serve_command
from trading_intents.recovery import commands as recovery
from trading_intents.storage.migrate import list_missing
from trading_intents.storage.migrate import migrate as run_migrations
from trading_intents.telemetry import Log, Metrics, library_messages, make_log, terminal_text

cli = typer.Typer(no_args_is_help=True)
admin = typer.Typer(
    help="Provision organizations, users, keys and service accounts.", no_args_is_help=True
)
cli.add_typer(admin, name="admin")
vault = typer.Typer(help="The embedded vault's master keys.", no_args_is_help=True)
cli.add_typer(vault, name="vault")
outbox = typer.Typer(
    help="Show the outbox, and retry or drop its failed rows; each is archived.",
    no_args_is_help=True,
)
cli.add_typer(outbox, name="outbox")
audits = typer.Typer(help="Prove that history was not rewritten.", no_args_is_help=True)
cli.add_typer(audits, name="audit")

NOTHING_HERE = 2  # the exit code of a command that found no database

Work = Callable[..., Coroutine[Any, Any, int | None]]


def _strangers(environ: Mapping[str, str]) -> dict[str, str]:
    """Integrations know theirs: these are not imported for it."""
    return config.unknown(environ, integration_names())


def _run(
    work: Callable[[Settings, Log], Coroutine[Any, Any, int | None]],
    roles: str = "",
    quiet: bool = True,
    process: str = "",
) -> None:
    environ = dict(os.environ)
    if roles:
        environ[config.PREFIX + "ROLES"] = roles
    try:
        settings = config.load(environ)
        log = make_log("warning" if quiet and settings.log_level == "info" else settings.log_level)
        if process or (not quiet and settings.count_workers()):
            log = log.bind(process=process or PARENT)
        # Its parent has logged them.
        for stranger, near in _strangers({} if process else environ).items():
            log.warning("unknown setting", variable=stranger, did_you_mean=near)
        with library_messages(log), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(work(settings, log))
    except PlatformError as error:
        Console(stderr=True).print(
            f"{process and process + ': '}[bold red]{error.title}:[/] "
            f"{terminal_text(error.detail)}",
            soft_wrap=True,
        )
        raise typer.Exit(NOTHING_HERE if isinstance(error, DatabaseMissing) else 1) from None
    raise typer.Exit(code or 0)


add_serve_command(cli, _run)


def command(group: typer.Typer, name: str | None = None) -> Callable[[Work], Work]:
    """Makes a command of a coroutine function. Behind the settings and the log it has the command's
    own parameters."""

    def add(work: Work) -> Work:
        def run(**options: Any) -> None:
            _run(partial(work, **options))

        whole = inspect.signature(work)
        own = whole.replace(parameters=list(whole.parameters.values())[2:])
        run.__signature__ = own  # type: ignore[attr-defined]  # typer reads the parameters from it
        run.__name__ = work.__name__
        run.__doc__ = work.__doc__
        group.command(name)(run)
        return work

    return add


@command(cli)
async def migrate(
    settings: Settings,
    log: Log,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would run, and what it locks.")
    ] = False,
) -> None:
    """Bring the database's schema up to date."""
    async with app.database_urls(settings, log, Metrics(), may_create=not is_dry_run) as urls:
        if is_dry_run:
            for file in await list_missing(urls.url):
                locks = [f"{table} {mode}" for table, mode in file.locks().items()]
                typer.echo(f"would apply {file.name}, which locks {', '.join(locks) or 'no table'}")
            return
        names = await run_migrations(urls.owner_url, urls.url, log, worker_url=urls.worker_url)
    typer.echo("\n".join(f"applied {name}" for name in names) or "nothing to do")


@command(cli, "doctor")
async def examine(
    settings: Settings,
    log: Log,
    account: Annotated[
        UUID | None, typer.Option(help="Look at this account, and ask its broker.")
    ] = None,
    is_tried: Annotated[
        bool, typer.Option("--try", help="Send, replace and cancel an order; on paper only.")
    ] = False,
    symbol: Annotated[str, typer.Option(help="With --try: what to trade.")] = "AAPL",
) -> int:
    """Check the installation, or one account, and say what to do."""
    if is_tried and not account:
        raise typer.BadParameter("--try needs --account")
    out = Console(highlight=False)
    if account:
        findings = await doctor.examine_account(settings, account, log, symbol if is_tried else "")
    else:
        findings = await doctor.examine(settings, _strangers(os.environ), log)
    for finding in findings:
        colour = {"ok": "green", "warning": "yellow", "wrong": "red"}[finding.state]
        out.print(
            f"[{colour}]{finding.state:8}[/]{finding.subject:14}{terminal_text(finding.text)}",
            soft_wrap=True,
        )
    return 1 if any(finding.state == "wrong" for finding in findings) else 0


@command(admin)
async def apply(
    settings: Settings,
    log: Log,
    file: Annotated[str, typer.Argument(help="A JSON document, or - for standard input.")],
) -> None:
    """Create and change what the document describes; answer with ids and new secrets. Running it
    again changes nothing."""
    wanted = provision.read_document(_read(file))
    async with app.open_infrastructure(settings, log, needs_worker=False) as parts:
        answer = await provision.apply(parts, wanted)
    typer.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror}") from None


@command(cli)
async def token(
    settings: Settings,
    log: Log,
    user: Annotated[str, typer.Option(help="The user's external id.")],
    organization: Annotated[
        str, typer.Option(help="The active organization's external id; none if left out.")
    ] = "",
) -> None:
    """Print a user's bearer token from the embedded identity provider."""
    async with app.open_infrastructure(settings, log, needs_worker=False) as parts:
        issued = await provision.user_token(parts, user, organization or None)
    typer.echo(issued.reveal())


@command(cli, "console")
async def open_console(
    settings: Settings,
    log: Log,
    url: Annotated[
        str, typer.Option(help="Where the platform serves; without it, as the settings say.")
    ] = "",
) -> None:
    """Print a link that signs in to the demo's console: once, within a minute, on this machine."""
    typer.echo(provision.make_console_link(settings, url).reveal())


@command(vault, "rotate")
async def rotate_vault(
    settings: Settings,
    log: Log,
    retire: Annotated[
        bool, typer.Option(help="Add no key; drop those that no secret needs any more.")
    ] = False,
) -> int:
    """Make a new master key and re-wrap every secret under it, while the service runs."""
    async with app.open_infrastructure(settings, log) as parts:
        keys = embedded_vault(settings, parts.clock, log)
        # An operator adds and drops keys of the environment.
        add = not retire and not settings.vault_master_keys
        with Console(stderr=True).status("re-wrapping ...") as status:
            done = await rotate(
                parts.database.worker,
                keys,
                add,
                retire,
                lambda count: status.update(f"re-wrapped {count}"),
            )
    typer.echo(f"master key {done.newest}; {done.rewrapped} secrets re-wrapped")
    for credential_id in done.unreadable:
        typer.echo(f"credential {credential_id} does not open: store its secrets anew")
    if done.retired:
        typer.echo(f"retired {', '.join(map(str, done.retired))}")
    if done.unused:
        typer.echo(f"not retired: {', '.join(map(str, done.unused))}; {_why_kept(settings)}")
    return 1 if done.unreadable or (done.unused and not settings.vault_master_keys) else 0


def _why_kept(settings: Settings) -> str:
    if settings.vault_master_keys:
        return f"no secret needs them, so take them out of {config.PREFIX}VAULT_MASTER_KEYS"
    young = f"the newest key is younger than {RETIRE_AFTER_SECONDS // 60} minutes"
    return f"{young}, and a secret may just be sealed with an older one: try again then"


Ids = Annotated[list[int], typer.Argument(help="Ids of failed rows, as `outbox list` shows them.")]
Reason = Annotated[str, typer.Option(help="The reason, which is recorded.")]


@command(outbox, "list")
async def list_outbox(
    settings: Settings,
    log: Log,
    queue: Annotated[list[Queue] | None, typer.Option(help="Only these queues.")] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only rows of these statuses; failed by default.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows at most.", min=1, max=MAX_LISTED)] = 100,
) -> None:
    """Show rows, oldest first: id, queue, status, event type, attempts, when queued, organization,
    last error."""
    async with (
        app.open_infrastructure(settings, log) as parts,
        parts.database.worker.transaction(read_only=True) as tx,
    ):
        rows = await list_rows(tx, queue or list(Queue), status or [Status.FAILED], limit)
    for row in rows:
        words = [str(row.id), row.queue, row.status, row.event_type, str(row.attempts)]
        words += [rfc3339(row.created_at), str(row.organization_id), row.last_error or ""]
        typer.echo("\t".join(words))


@command(outbox, "retry")
async def retry_outbox(settings: Settings, log: Log, ids: Ids, reason: Reason) -> None:
    """Put failed rows in again, all or none, and archive the old ones."""
    async with app.open_infrastructure(settings, log) as parts:
        made = await operators.retry(parts.database.worker, ids, operators.name_operator(), reason)
        for queue in {queue for queue, _ in made.values()}:
            parts.signals.notify(channel(queue))
    for old, (_, new) in made.items():
        typer.echo(f"{old} again as {new}")


@command(outbox, "drop")
async def drop_outbox(settings: Settings, log: Log, ids: Ids, reason: Reason) -> None:
    """Archive failed rows, all or none, without handling them."""
    async with app.open_infrastructure(settings, log) as parts:
        await operators.drop(parts.database.worker, ids, operators.name_operator(), reason)
    typer.echo(f"dropped {' '.join(map(str, ids))}")


@command(audits, "verify")
async def verify_log(
    settings: Settings,
    log: Log,
    account: Annotated[UUID | None, typer.Option(help="Only this account.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with heads that were kept in this file.")
    ] = None,
) -> int:
    """Check each account's chain of hashes, its head, orders and events. Exit code 1 if anything is
    wrong."""
    kept = audit.read_heads(against) if against else {}
    accounts = 0
    actions = 0
    damaged = 0
    gaps = 0
    async with app.open_infrastructure(settings, log) as parts:
        pool = parts.database.worker
        out = Console(stderr=True)
        with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
            task = bar.add_task("verifying", total=await audit.count_actions(pool, account))
            async for found in audit.verify(
                pool, account, kept, lambda count: bar.advance(task, count)
            ):
                accounts += 1
                actions += found.actions
                if found.bad_seq is not None:
                    damaged += 1
                    typer.echo(f"account {found.account_id}, action {found.bad_seq}: {found.wrong}")
        async for gap in audit.find_gaps(pool, account):
            gaps += 1
            typer.echo(f"organization {gap.organization_id}, message {gap.seq}: {audit.GAP}")
    typer.echo(f"{accounts} accounts, {actions} actions followed, {damaged} accounts damaged")
    if not damaged and not gaps:
        typer.echo(f"{audit.PROVED}\n{audit.PROVED_AGAINST if against else audit.NOT_PROVED}")
    return 1 if damaged or gaps else 0


@command(audits, "anchor")
async def print_heads(settings: Settings, log: Log) -> None:
    """Print each account's head, one JSON object a line, to be kept where no administrator of the
    database can write."""
    async with app.open_infrastructure(settings, log) as parts:
        async for head in audit.list_heads(parts.database.worker):
            typer.echo(msgspec.json.encode(head))


command(cli)(recovery.backup)
command(cli)(recovery.restore)
command(admin, "resume-restored")(recovery.resume)


def _of_integration(work: Work) -> Work:
    @wraps(work)
    async def run(settings: Settings, log: Log, **options: Any) -> None:
        async with app.open_infrastructure(settings, log) as parts:
            context = OperatorContext(
                parts.database.worker, operators.name_operator(), is_connected
            )
            await work(context, log, **options)

    return run


def _group_of(point: EntryPoint) -> type[TyperGroup]:
    """A group whose commands are imported when one of them, or their list, is asked for."""

    class IntegrationCommands(TyperGroup):
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            self._load()
            return super().get_command(ctx, cmd_name)

        def list_commands(self, ctx: Any) -> list[str]:
            self._load()
            return super().list_commands(ctx)

        def _load(self) -> None:
            loaded = typer.Typer()
            try:
                brought = point.load().items()
            except (Exception, SystemExit) as error:
                reason = f"{type(error).__name__}: {error}"
                typer.echo(f"{point.value} cannot be loaded: {terminal_text(reason)}", err=True)
                raise typer.Exit(1) from None
            for name, work in brought:
                command(loaded, name)(_of_integration(work))
            self.commands = typer.main.get_group(loaded).commands

    return IntegrationCommands


for broker, point in broker_command_groups(make_log("warning")).items():
    help_text = f"Sessions with {broker.upper()} venues."
    group = typer.Typer(cls=_group_of(point), help=help_text, no_args_is_help=True)
    cli.add_typer(group, name=broker)
