"""`forward`: every event arrives, in order and signed, whatever becomes of the target and the
forwarder."""

import base64
import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from tests.fork_server import Fork
from tests.platform import PROGRAM
from tests.seeds import seeded
from tests.tenants import Tenants
from tests.trader.conftest import Command
from tests.trader.receiver import Answer, Receiver, receiving
from tests.waiting import eventually
from trading_intents_client import Account, NotConfigured, PositionEvent, TradingClient
from trading_intents_client.webhooks.cursor_file import CursorFile
from trading_intents_client.webhooks.forwarding import Forwarder
from trading_intents_client.webhooks.signing import WebhookSigner
from trading_intents_client.webhooks.target import WebhookTarget, check_target

USAGE = 2
LIMIT_SECONDS = 60
TIMEOUT_SECONDS = 0.5
FAULTS = [answer for answer in Answer if answer is not Answer.TAKEN]


def make_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


@pytest.fixture
def secret() -> str:
    return make_secret()


class Forwarders:
    """Starts forwarders of one account by its state file, and keeps what they say."""

    def __init__(self, environ: dict[str, str], folder: Path, secret: str) -> None:
        self.state = folder / "state"
        self._secret_file = folder / "secret"
        self._said = folder / "said"
        self._secret_file.write_text(secret + "\n")
        self._environ = environ

    @property
    def said(self) -> str:
        return self._said.read_text()

    @contextlib.contextmanager
    def running(self, url: str, *arguments: str) -> Iterator[Fork]:
        options = ["--state", str(self.state), "--secret-file", str(self._secret_file)]
        options += ["--timeout", str(TIMEOUT_SECONDS), *arguments]
        with open(self._said, "a") as said:
            forwarder = Fork(
                PROGRAM,
                "forward",
                "--to",
                url,
                *options,
                environ=self._environ,
                stdout=said.fileno(),
                stderr=said.fileno(),
            )
            try:
                yield forwarder
            finally:
                forwarder.kill()
                forwarder.wait(LIMIT_SECONDS)


@pytest.fixture
def forwarders(environ: dict[str, str | None], tmp_path: Path, secret: str) -> Forwarders:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TRADING_INTENTS_")
    }
    return Forwarders(
        kept | {name: value for name, value in environ.items() if value}, tmp_path, secret
    )


def begin(account: Account, state: Path) -> str:
    """The cursor of now, in the state file."""
    with account.events() as stream:
        cursor = next(stream).cursor
    assert cursor is not None
    state.write_text(json.dumps({"account_id": account.id, "cursor": cursor}))
    return cursor


def trade(account: Account, orders: int) -> None:
    """The last order's position is the last event."""
    placed = [account.buy(f"S{number}", 1) for number in range(orders)]
    for order in placed:
        order.wait()
    account.buy("LAST", 1).wait()


def recorded(account: Account, after: str) -> list[str]:
    """The cursors of all events up to the last order's position."""
    found: list[str] = []
    with account.events(after=after) as stream:
        for event in stream:
            found.append(event.cursor or "")
            if isinstance(event, PositionEvent) and event.position.symbol == "LAST":
                break
    return found


# The small size takes five seconds: the pause after a fault is a second at least. It kills while a
# fault goes on.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("orders", "kills", "fault_share"),
    [
        (4, (8, 16), None),
        pytest.param(
            220, range(100, 1_100, 100), 0.08, marks=[pytest.mark.chaos, pytest.mark.timeout(1200)]
        ),
    ],
    ids=["small", "full"],
)
def test_each_event_arrives_in_order_through_faults_of_the_target_and_kills(
    forwarders: Forwarders,
    account: Account,
    secret: str,
    orders: int,
    kills: Sequence[int],
    fault_share: float | None,
) -> None:
    dice = seeded("forward")
    fixed = {3: Answer.FAILED, 7: Answer.RESET, 11: Answer.HANGING, 15: Answer.SILENT}

    def choose(attempt: int) -> Answer:
        if fault_share is None:
            return fixed.get(attempt, Answer.TAKEN)
        return dice.choice(FAULTS) if dice.random() < fault_share else Answer.TAKEN

    cursor = begin(account, forwarders.state)
    trade(account, orders)
    expected = recorded(account, cursor)
    assert len(expected) >= (1_000 if fault_share else 20)
    with receiving(secret, choose) as receiver:
        for attempts in kills:
            with forwarders.running(receiver.url, "--account", account.id):
                receiver.await_attempts(attempts, 20 * LIMIT_SECONDS)
        with forwarders.running(receiver.url, "--account", account.id):
            receiver.await_attempts(len(expected), 20 * LIMIT_SECONDS)
            eventually(
                lambda: json.loads(forwarders.state.read_text())["cursor"] == expected[-1],
                20 * LIMIT_SECONDS,
            )
    assert receiver.unverified == []
    assert receiver.ids == expected, "each once for a receiver that keeps ids, in order"
    assert list(dict.fromkeys(receiver.taken)) == expected, "also if a fault is taken for a loss"
    order = {event_id: number for number, event_id in enumerate(expected)}
    steps = [
        order[later] - order[sooner]
        for sooner, later in zip(receiver.attempts, receiver.attempts[1:], strict=False)
    ]
    assert set(steps) <= {0, 1}, "what is repeated is the last one"
    assert {Answer.FAILED, Answer.RESET, Answer.HANGING} <= set(receiver.answers)
    assert_nothing_leaks(forwarders, secret, receiver)


def assert_nothing_leaks(forwarders: Forwarders, secret: str, receiver: Receiver) -> None:
    said = forwarders.said
    assert "again in 1 s" in said
    for hidden in (
        secret,
        secret.removeprefix("whsec_"),
        "of-the-receiver",
        forwarders._environ["TRADING_INTENTS_API_KEY"],
    ):
        assert hidden not in said
    assert "Traceback" not in said


def test_the_body_is_the_events_json_as_the_stream_has_it(
    forwarders: Forwarders, account: Account, secret: str, tenants: Tenants
) -> None:
    cursor = begin(account, forwarders.state)
    trade(account, 0)
    expected = recorded(account, cursor)
    with (
        receiving(secret) as receiver,
        forwarders.running(receiver.url, "--account", account.id) as forwarder,
    ):
        receiver.await_attempts(len(expected), LIMIT_SECONDS)
        listing = Path(f"/proc/{forwarder.pid}/cmdline").read_text()
    key = tenants.api_key("org_acme", "all")["api_key"]
    assert secret not in listing
    assert key not in listing
    headers = {"x-api-key": key, "last-event-id": cursor}
    shown: list[str] = []
    with httpx.stream(
        "GET", f"{tenants.platform.url}/v1/accounts/{account.id}/events", headers=headers
    ) as answer:
        for line in answer.iter_lines():
            shown += (
                [line.removeprefix("data: ")]
                if line.startswith("data: ") and '"cursor"' in line
                else []
            )
            if len(shown) == len(expected):
                break
    assert [receiver.bodies[event_id].decode() for event_id in receiver.ids] == shown


def test_a_first_start_forwards_from_now_on_and_only_the_kinds_that_are_asked_for(
    forwarders: Forwarders, account: Account, secret: str
) -> None:
    account.buy("BEFORE", 1).wait()
    with receiving(secret) as receiver:
        chosen = ("--account", account.id, "--kinds", "broker_trade")
        with forwarders.running(receiver.url, *chosen):
            eventually(forwarders.state.exists, LIMIT_SECONDS)
            begun = json.loads(forwarders.state.read_text())["cursor"]
        # Nobody forwards, and nothing is missed.
        trade(account, 2)
        last = recorded(account, begun)[-1]
        with forwarders.running(receiver.url, *chosen):
            # The last event is a position: its cursor is kept, so that it does not grow old, and it
            # is not sent.
            eventually(
                lambda: json.loads(forwarders.state.read_text())["cursor"] == last, LIMIT_SECONDS
            )
    assert [json.loads(body)["broker_trade"]["symbol"] for body in receiver.bodies.values()] == [
        "S0",
        "S1",
        "LAST",
    ]


def test_a_cursor_that_is_no_longer_kept_is_said_here_and_sent_to_the_target(
    forwarders: Forwarders, account: Account, secret: str
) -> None:
    old = base64.urlsafe_b64encode(os.urandom(16) + (1).to_bytes(8)).decode()
    forwarders.state.write_text(json.dumps({"account_id": account.id, "cursor": old}))
    with receiving(secret) as receiver, forwarders.running(receiver.url, "--account", account.id):
        receiver.await_attempts(1, LIMIT_SECONDS)
        trade(account, 0)
        receiver.await_attempts(2, LIMIT_SECONDS)
    gap = json.loads(receiver.bodies[receiver.ids[0]])
    assert gap == {"gap": {"after": old}, "cursor": receiver.ids[0]}
    assert receiver.ids[1:] == recorded(account, receiver.ids[0])[: len(receiver.ids) - 1]
    assert f"fallen behind: events after {old} are no longer kept (7 days)" in forwarders.said


async def test_pauses_double_up_to_a_minute(secret: str, account: Account, tmp_path: Path) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    def choose(attempt: int) -> Answer:
        return (
            Answer.TAKEN if attempt in (8, 10) else Answer.MOVED if attempt == 0 else Answer.FAILED
        )

    with receiving(secret, choose) as receiver, CursorFile(tmp_path / "state", account.id) as file:
        async with WebhookTarget(receiver.url, WebhookSigner(secret)) as target:
            forwarder = Forwarder(target, file, lambda _: None, sleep)
            await forwarder.deliver("first", b"{}")
            await forwarder.deliver("second", b"{}")
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1]
    assert receiver.attempts == ["first"] * 9 + ["second"] * 2, "a redirect is not followed"
    assert receiver.unverified == []


def test_ctrl_c_ends_it_and_a_second_forwarder_of_a_file_is_refused(
    forwarders: Forwarders, account: Account, secret: str, client: TradingClient
) -> None:
    with (
        receiving(secret) as receiver,
        forwarders.running(receiver.url, "--account", account.id) as forwarder,
    ):
        eventually(forwarders.state.exists, LIMIT_SECONDS)
        with forwarders.running(receiver.url, "--account", account.id) as second:
            assert second.wait(LIMIT_SECONDS) == USAGE
        assert "another program forwards events by" in forwarders.said
        forwarder.send_signal(signal.SIGINT)
        assert forwarder.wait(LIMIT_SECONDS) == 130
        other = client.create_account("another", "paper", "paper").id
        with forwarders.running(receiver.url, "--account", other) as wrong:
            assert wrong.wait(LIMIT_SECONDS) == USAGE
    assert f"is of account {account.id}: each account has a file of its own" in forwarders.said
    assert "Traceback" not in forwarders.said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.com/hooks", "must be https"),
        ("http://10.0.0.1/hooks", "must be https"),
        ("http://127.0.0.1.example.com/", "must be https"),
        ("https://ada:pa55word@example.com/", "must not hold a user or password"),
        ("ftp://127.0.0.1/", "must be like https"),
        ("hooks", "must be like https"),
        ("http://[::1", "cannot be read"),
    ],
)
def test_a_target_that_others_could_read_along_with_is_refused(
    run: Command, secret: str, url: str, said: str
) -> None:
    done = run("forward", "--to", url, "--state", "x", TRADING_INTENTS_WEBHOOK_SECRET=secret)
    assert done.exit_code == USAGE
    assert said in " ".join(done.stderr.split())
    assert "pa55word" not in done.output


@pytest.mark.parametrize(
    "url", ["https://example.com/x", "http://127.0.0.1:1/", "http://localhost/", "http://[::1]:9/x"]
)
def test_https_and_this_machine_are_targets(url: str) -> None:
    assert check_target(url) == url


@pytest.mark.parametrize(
    "wrong",
    ["", "pa55word", "whsec_", "whsec_pa55word", "whsec_!!pa55word!!", "whsec_" + "A" * 100],
)
def test_a_wrong_secret_is_reported_without_showing_it(
    run: Command, tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "secret").write_text(wrong)
    options = ("--to", "http://127.0.0.1:9/", "--state", str(tmp_path / "state"))
    for done in (
        run("forward", *options, "--secret-file", str(tmp_path / "secret")),
        run("forward", *options, TRADING_INTENTS_WEBHOOK_SECRET=wrong),
    ):
        assert done.exit_code == USAGE
        assert "webhook secret" in " ".join(done.stderr.split())
        assert "pa55word" not in done.output
    assert run("forward", *options, "--secret-file", str(tmp_path / "none")).exit_code == USAGE
    assert (
        run(
            "forward", *options, "--kinds", "orders", TRADING_INTENTS_WEBHOOK_SECRET=make_secret()
        ).exit_code
        == USAGE
    )


def test_the_signature_is_the_one_of_the_specification(secret: str) -> None:
    headers = WebhookSigner(secret).headers("msg_1", 1_614_265_330, b'{"test": 2432232314}')
    known = Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert "MfKQ" not in repr(WebhookSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    assert headers["webhook-timestamp"] == "1614265330"
    signed = WebhookSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").headers(
        "msg_1", 1_614_265_330, b"{}"
    )
    assert signed["webhook-signature"] == known.sign(
        "msg_1", datetime.fromtimestamp(1_614_265_330, UTC), "{}"
    )


def test_a_state_file_that_cannot_be_read_is_never_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"account_id": "a"')
    with (
        CursorFile(tmp_path / "state", "a") as file,
        pytest.raises(NotConfigured, match="cannot be read"),
    ):
        file.read()
    with (
        pytest.raises(NotConfigured, match="cannot be written"),
        CursorFile(tmp_path / "none" / "state", "a"),
    ):
        pass
