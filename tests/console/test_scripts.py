"""The console's scripts: types by TypeScript's checker, habits by ESLint, form by Prettier, and
what can be tested without a browser."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trading_intents_client.cli.reasons import SENTENCES

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATIC = ROOT / "src" / "trading_intents" / "console" / "static"
STYLES = ROOT / "src" / "trading_intents" / "web" / "description"
PROGRAMS = ROOT / ".venv" / "npm" / "node_modules" / ".bin"


def program(name: str) -> str:
    found = shutil.which(name, path=str(PROGRAMS))
    if found is None or shutil.which("node") is None:
        pytest.skip(
            f"{name} is missing; `make browser` installs it by npm (apt-get install nodejs npm)"
        )
    return found


def test_the_types_hold() -> None:
    done = subprocess.run(
        [program("tsc"), "-p", str(HERE / "tsconfig.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_eslint_finds_nothing() -> None:
    command = [
        program("eslint"),
        "--max-warnings",
        "0",
        "--config",
        str(HERE / "eslint.config.mjs"),
        str(STATIC),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prettier_finds_nothing() -> None:
    files = [
        *STATIC.glob("*.js"),
        *STATIC.glob("*.css"),
        *HERE.glob("*.mjs"),
        *HERE.glob("*.ts"),
        *STYLES.glob("*.css"),
    ]
    command = [program("prettier"), "--check", "--print-width", "100", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def evaluate(module: str, expression: str) -> Any:
    """The value of an expression over a module `m`, computed by Node.js."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js: apt-get install nodejs")
    text = (
        f"import * as m from {json.dumps(str(STATIC / module))}; "
        f"console.log(JSON.stringify({expression}))"
    )
    command = [
        "node",
        "--no-warnings",
        "--experimental-default-type=module",
        "--input-type=module",
        "-e",
        text,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_amounts_are_added_exactly() -> None:
    assert (
        evaluate("amounts.js", 'm.sum(["0.1", "0.2", "-0.000000000000000001"])')
        == "0.299999999999999999"
    )
    assert evaluate("amounts.js", 'm.sum(["123456789012345678.1", "-0.1"])') == "123456789012345678"
    assert evaluate("amounts.js", 'm.sum(["-5", "4.5"])') == "-0.5"
    assert evaluate(
        "amounts.js", '[["9","10"],["-1","1"],["1.0","1"]].map(([a, b]) => m.compareAmounts(a, b))'
    ) == [
        -1,
        -1,
        0,
    ]


def test_amounts_are_shown_with_their_digits() -> None:
    shown = evaluate(
        "amounts.js",
        '["1234567.891","-1000","0.5",null].map((a) => [m.showAmount(a), m.showMoney(a)])',
    )
    assert shown == [
        ["1,234,567.891", "1,234,567.89"],
        ["−1,000", "−1,000.00"],  # noqa: RUF001 - the sign that is shown
        ["0.5", "0.50"],
        ["–", "–"],  # noqa: RUF001 - the sign that is shown
    ]


def test_amounts_are_multiplied_and_rounded_exactly() -> None:
    assert evaluate(
        "amounts.js", '[m.multiply("99999999", "424.1"), m.multiply("0.1", "-0.2")]'
    ) == [
        "42409999575.9",
        "-0.02",
    ]
    rounded = (
        '[["1.005", 2], ["-1.005", 2], ["0.004", 2], ["-0.004", 2], ["2.5", 0]].map(([a, p]) => '
        "m.roundAmount(a, p))"
    )
    assert evaluate("amounts.js", rounded) == ["1.01", "-1.01", "0.00", "0.00", "3"]
    averages = (
        'm.showAverage("187.333333333", "187.5"), m.showAverage("0.123456", "0.1234"), '
        'm.showAverage("1.23456")'
    )
    assert evaluate("amounts.js", f"[{averages}]") == ["187.33", "0.1235", "1.2346"]


def test_decimals_line_up_and_texts_stay_as_they_are() -> None:
    padded = evaluate(
        "amounts.js", '["10", "0.5", "187.25", "market", ""].map((text) => m.padTail(text, 2))'
    )
    assert padded == ["10\u2008\u2007\u2007", "0.5\u2007", "187.25", "market", ""]


def test_a_brokers_quantity_from_before_our_last_fill_is_no_difference() -> None:
    reports = [
        {"quantity": "10", "broker_quantity": "10.0", "differs": False},
        {
            "quantity": "10",
            "broker_quantity": "4",
            "differs": False,
            "broker_sent_at": "2020-01-01T00:00:00Z",
        },
        {
            "quantity": "10",
            "broker_quantity": "4",
            "differs": True,
            "broker_sent_at": "2020-01-01T00:00:00Z",
        },
        {"quantity": "10", "broker_quantity": None, "differs": None},
    ]
    same, older, differs, none = evaluate(
        "positions.js", f"{json.dumps(reports)}.map(m.describeReport)"
    )
    assert (same, none) == ("agrees", "not reported")
    assert older["text"].startswith("4 at ")
    assert "2020" in older["text"]
    assert differs == {"text": "differs: 4", "class": "warn"}


def test_a_line_of_the_equity_goes_on_until_now() -> None:
    spans = [
        {"at": "1970-01-01T00:00:01Z", "equity": "5"},
        {"at": "1970-01-01T00:00:02Z", "equity": None},
    ]
    line = f"m.lineOf('equity', {json.dumps(spans)}, 9000).points"
    assert evaluate("equity.js", line) == [[1000, 5], [9000, 5]]
    assert evaluate("equity.js", "m.lineOf('equity', [], 9000).points") == []


@pytest.mark.parametrize(
    ("now", "zone", "begin"),
    [
        ("2026-11-17T12:41:06.789Z", "UTC", "2026-11-17T00:00:00.000Z"),
        ("2026-11-17T00:00:00.000Z", "UTC", "2026-11-17T00:00:00.000Z"),
        ("2026-11-17T03:00:00Z", "America/New_York", "2026-11-16T05:00:00.000Z"),
        ("2026-11-17T03:00:00Z", "Asia/Kathmandu", "2026-11-16T18:15:00.000Z"),
        # A day of 25 hours.
        ("2026-11-01T20:00:00Z", "America/New_York", "2026-11-01T04:00:00.000Z"),
        ("2026-03-08T20:00:00Z", "America/New_York", "2026-03-08T05:00:00.000Z"),  # of 23
        ("2026-03-29T09:00:00Z", "Asia/Beirut", "2026-03-28T22:00:00.000Z"),  # that begins at 01:00
    ],
)
def test_a_day_begins_when_its_calendar_does(now: str, zone: str, begin: str) -> None:
    assert evaluate("equity.js", f"new Date(m.beginDay(Date.parse('{now}'), '{zone}'))") == begin


@pytest.mark.parametrize(
    ("text", "base", "is_above", "price"),
    [
        ("195", "187.5", True, "195"),
        ("2%", "187.5", True, "191.25"),
        ("2.5 %", "187.5", False, "182.81"),
        ("1%", "0.1234", False, "0.1222"),
        ("2%", "undefined", True, "2%"),  # no price is known: the platform says what is wrong
        ("", "187.5", True, ""),
    ],
)
def test_an_exit_is_a_price_or_a_distance(text: str, base: str, is_above: bool, price: str) -> None:
    assert (
        evaluate("ticket.js", f"m.priceAway({text!r}, {base!r}, {json.dumps(is_above)})") == price
    )


def test_a_trail_is_an_amount_or_basis_points() -> None:
    spec = "m.specOf({ kind: 'TrailingStop', quantity: '5', trail: %r, time_in_force: '' })"
    assert evaluate("ticket.js", spec % "1.5") == {
        "TrailingStop": {"quantity": "5", "trail_amount": "1.5"}
    }
    assert evaluate("ticket.js", spec % "2.35%") == {
        "TrailingStop": {"quantity": "5", "trail_bps": 235}
    }


def test_reasons_are_the_sentences_of_the_terminal_and_a_brokers_words_come_first() -> None:
    said = evaluate("orders.js", "m.SENTENCES")
    assert said == {code: SENTENCES[code] for code in said}
    assert {"stale", "halted", "insufficient_buying_power", "no_position_to_sell"} <= said.keys()
    orders = [
        {"reason": "stale"},
        {"reason": "stale", "detail": "the broker was not connected"},
        {"reason": "mine"},
        {},
    ]
    assert evaluate("orders.js", f"{json.dumps(orders)}.map(m.explainOrder)") == [
        "it could not be sent in time and was given up (stale)",
        "the broker was not connected (stale)",
        "mine",
        "",
    ]


@pytest.mark.parametrize(
    ("status", "added", "said"),
    [
        ("PENDING_NEW", {}, "Accepted: Short 10 AAPL. It waits: the broker is not connected."),
        ("NEW", {"limit_price": "187.5"}, "Working: Short 10 AAPL at 187.5."),
        ("PARTIALLY_FILLED", {}, "Partially filled: Short 10 AAPL; 4 were filled at 187.3333."),
        ("FILLED", {"limit_price": "187.5"}, "Filled: Short 10 AAPL at 187.33."),
        (
            "REJECTED",
            {"reason": "x", "filled_quantity": "0"},
            "Rejected: Short 10 AAPL, because x.",
        ),
        ("CANCELLED", {}, "Cancelled: Short 10 AAPL; 4 were filled at 187.3333."),
    ],
)
def test_what_became_of_an_order_is_a_sentence(
    status: str, added: dict[str, str], said: str
) -> None:
    order = {"order_status": status, "order_side": "SELL_SHORT", "quantity": "10", "symbol": "AAPL"}
    order |= {"filled_quantity": "4", "average_price": "187.333333"} | added
    assert evaluate("orders.js", f"m.describeOutcome({json.dumps(order)}, false).text") == said


def test_the_header_names_all_that_keeps_orders_the_worst_first() -> None:
    halts = [{"reason": "r", "created_at": "2026-01-01T00:00:00Z", "scope": {"Organization": "o"}}]
    cases = [
        ["live", "connected", []],
        ["live", "disconnected", halts],
        ["lost", "connected", halts],
    ]
    states = """(() => {
        const states = [];
        for (const [state, connection, halts] of CASES) {
            const troubles = m.troublesOf({ connection }, halts);
            states.push(m.describeStatus({ state, since: new Date() }, troubles));
        }
        return states;
    })()"""
    states = states.replace("CASES", json.dumps(cases))
    fine, away, lost = evaluate("status.js", states)
    assert fine == {"text": "Up to date", "look": "live"}
    assert away == {"text": "Halted · Broker away", "look": "live halted"}
    assert lost["text"].startswith("Disconnected since ")
    assert lost["text"].endswith(" · Halted")


def test_events_are_read_wherever_the_text_is_cut() -> None:
    text = ': heartbeat\\n\\nevent: a\\nid: 1\\ndata: {"x":1}\\n\\nevent: status\\ndata: {}\\n\\n'
    expected = [
        {"kind": "a", "id": "1", "data": {"x": 1}},
        {"kind": "status", "id": "", "data": {}},
    ]
    for size in (1, 2, 7, 100):
        pieces = f"('{text}'.match(/[^]{{1,{size}}}/g))"
        pushed = f"{pieces}.flatMap((piece) => p.push(piece))"
        read = f"(() => {{ const p = new m.EventParser(); return {pushed}; }})()"
        assert evaluate("stream.js", read) == expected


def test_metrics_are_read_and_quantiles_are_of_what_happened_between() -> None:
    text = 'a_total{x="1",y="q\\\\"}"} 3\\n# HELP b c\\nb 1e-3\\n'
    expected = [
        {"name": "a_total", "labels": {"x": "1", "y": 'q\\"}'}, "value": 3},
        {"name": "b", "labels": {}, "value": 0.001},
    ]
    assert evaluate("operator.js", f"m.parseMetrics('{text}')") == expected
    reading = (
        "(counts) => ['0.1', '0.5', '+Inf'].map((le, i) => ({name: 'h_bucket', labels: {le}, "
        "value: counts[i]}))"
    )
    counts = f"({reading})([5, 5, 5]), ({reading})([7, 9, 9])"
    between = f"[0.5, 0.99].map((q) => m.quantileBetween({counts}, 'h', q))"
    assert evaluate("operator.js", between) == [100, 500]


def test_figures_are_of_all_processes_and_a_silent_one_is_named() -> None:
    lines = [
        f'ti_process_up{{process="{name}"}} {value}'
        for name, value in (("api", 1), ("worker-1", 1), ("w", 0))
    ]
    for worker in ("worker-1", "worker-2"):
        lines.append(f'ti_execution_leases{{process="{worker}"}} 2')
        lines.append(f'ti_execution_links{{process="{worker}",state="connected"}} 2')
        lines.append(f'ti_outbox_oldest_pending_seconds{{process="{worker}",queue="intents"}} 7')
    text = "\\n".join(lines)
    shown = dict(evaluate("operator.js", f"m.figuresOf(m.parseMetrics('{text}'))"))
    assert [shown[f"Process {name}"] for name in ("api", "worker-1", "w")] == [
        "answers",
        "answers",
        "does not answer",
    ]
    assert shown["Accounts worked"] == "4"
    assert shown["Links, connected"] == "4"
    assert shown["Oldest pending, intents"] == "7"


def test_a_token_that_is_renewed_after_signing_out_is_not_kept() -> None:
    renewing = """await (async () => {
        const caller = { principal_type: "USER", principal_id: "ada", role: "admin" };
        const answer = { ...caller, environment: null, policies: [] };
        globalThis.fetch = async () =>
            Response.json({ ...answer, expires_at: new Date().toISOString() });
        const held = [];
        for (const meanwhile of [() => undefined, (session) => session.clear()]) {
            const session = new m.Session();
            await session.add("first", async () => (meanwhile(session), "second"));
            await session.refresh();
            held.push([...session.credentials.values()].map((credential) => credential.secret));
        }
        return held;
    })()"""
    assert evaluate("session.js", renewing) == [["second"], []]


def test_calls_that_never_pause_are_answered_by_work() -> None:
    calling = """await (async () => {
        globalThis.window = globalThis;
        let works = 0;
        const { run, stop } = m.throttle(5, () => (works += 1));
        while (works < 3) await new Promise((resolve) => setTimeout(resolve, run() ?? 1));
        stop();
        return works;
    })()"""
    assert evaluate("dom.js", calling) == 3


def test_a_hidden_page_keeps_no_more_orders_than_a_visible_one() -> None:
    """Its frames do not run. The first 200 orders stay open, and are never dropped."""
    trading = """(() => {
        globalThis.requestAnimationFrame = () => 0;
        const feed = new m.AccountFeed({}, { id: "a" });
        for (let index = 0; index < 12_000; index += 1) {
            const order_state = index < 200 ? "ORDER_STATE_OPEN" : "ORDER_STATE_CLOSED";
            const created_at = new Date(index).toISOString();
            const broker_order = { order_id: String(index), version: "1", order_state, created_at };
            feed._take([{ kind: "broker_order", id: "", data: { broker_order } }]);
        }
        const open = [...feed.orders.values()].filter((order) => order.order_state === "OPEN");
        const isSmall = (kept) => kept.size <= 5_700;
        return [isSmall(feed.orders), open.length, feed.orders.has("11999"), isSmall(feed.touched)];
    })()"""
    assert evaluate("feed.js", trading) == [True, 200, True, True]
