"""Nothing that a broker, a client or a server wrote commands the terminal that shows it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.sources import CLIENT_SOURCES
from tests.tenants import Tenants
from tests.trader.blotters import AT, blotter, order_event
from tests.trader.conftest import Command
from tests.trader.replaced_answers import answers_replaced
from trading_intents.web.body import LINE
from trading_intents_client import Account, ConnectionState, HaltEvent, HaltState, OrderStatus
from trading_intents_client.cli.lines import event_line
from trading_intents_client.cli.plain import plain, plain_json
from trading_intents_client.cli.watch.screen import draw
from trading_intents_client.stream.events import StreamedHalt

# The window's title, the clipboard, a cleared screen, a colour by C1, a turned direction, a line.
HOSTILE = "\x1b]0;T\x07\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202eb\u200bc\u2028d\r\ne"
CHARACTERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028\u202e]")
CURSOR_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # of rich's own


def test_what_the_platform_refuses_is_what_a_terminal_does_not_get() -> None:
    taken = re.compile(LINE)
    differing = []
    for number in range(0x110000):
        character = chr(number)
        if (plain(character) == character) != bool(taken.match(character)):
            differing.append(character)
    assert differing == []


def test_json_keeps_its_values() -> None:
    written = plain_json(json.dumps({HOSTILE: HOSTILE + "é"}, ensure_ascii=False))
    assert not CHARACTERS.search(written)
    assert json.loads(written) == {HOSTILE: HOSTILE + "é"}


def http(status: int, kind: str, body: str) -> bytes:
    data = body.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def hostile_orders(tenants: Tenants, account: Account) -> str:
    key = {"x-api-key": tenants.api_key("org_acme", "all")["api_key"]}
    answer: Any = tenants.client.get(f"/v1/accounts/{account.id}/orders", headers=key).json()
    (order,) = answer["data"]
    changes = {"reason": HOSTILE, "detail": HOSTILE, "symbol": HOSTILE, "leg": HOSTILE}
    return json.dumps({"data": [order | changes], "next_cursor": None})


@pytest.mark.parametrize("arguments", [("orders", "--all"), ("orders", "--all", "--json")])
def test_a_hostile_list_is_shown_as_text(
    run: Command, tenants: Tenants, account: Account, arguments: tuple[str, ...]
) -> None:
    account.buy("AAPL", 1).wait()
    answer = http(200, "application/json", hostile_orders(tenants, account))
    with answers_replaced(tenants, b"/orders", answer) as url:
        done = run(*arguments, TRADING_INTENTS_URL=url)
    assert done.exit_code == 0, done.output
    assert not CHARACTERS.search(done.output)
    if "--json" in arguments:
        assert json.loads(done.stdout)["detail"] == HOSTILE


def test_a_hostile_refusal_and_export_are_shown_as_text(
    run: Command, tenants: Tenants, account: Account
) -> None:
    triggered = [{"reason": HOSTILE, "scope": {}, "detail": HOSTILE}]
    for problem in (
        {"code": "not_found", "detail": HOSTILE},
        {"code": "control_rejected", "detail": "x", "triggered": triggered},
    ):
        answer = http(409, "application/problem+json", json.dumps(problem))
        with answers_replaced(tenants, b"/intents", answer) as url:
            done = run("buy", "AAPL", "1", TRADING_INTENTS_URL=url)
        assert done.exit_code == 1
        assert "?]52" in done.stderr
        assert not CHARACTERS.search(CURSOR_MOVES.sub("", done.output))
    table = http(200, "text/csv; charset=utf-8", f"a,b\r\n1,{HOSTILE.replace(chr(13), '')}\r\n")
    with answers_replaced(tenants, b"/orders", table) as url:
        done = run("export", "orders", TRADING_INTENTS_URL=url)
    assert done.stdout.startswith("a,b\n1,?]0;T??]52")
    assert not CHARACTERS.search(done.output)


def test_the_screen_shows_hostile_texts_as_text() -> None:
    state = blotter()
    halted = StreamedHalt(
        id="h", organization_id="o", state=HaltState.CANCELLING, reason=HOSTILE, created_at=AT
    )
    event = HaltEvent(halt=halted, cursor="c")
    state.apply(event)
    state.apply(order_event(1, 1, OrderStatus(HOSTILE)))
    state.notice = HOSTILE
    state.trouble = HOSTILE
    assert HOSTILE in event_line(event)
    assert state.account.connection == ConnectionState.CONNECTED
    for width, height in ((60, 16), (80, 24), (200, 50)):
        out = Console(width=width, height=height, file=io.StringIO(), force_terminal=True)
        out.print(draw(state, True, width, height))
        assert isinstance(out.file, io.StringIO)
        drawn = CURSOR_MOVES.sub("", out.file.getvalue())
        assert not CHARACTERS.search(drawn)
        assert "?]0;T" in drawn
        assert len(drawn.splitlines()) == height, "no text adds a line"


def test_the_commands_print_by_no_other_way() -> None:
    ways = re.compile(r"\btyper\.(?:echo|secho)\(|\bprint\(|\brich\.text\b|\bsys\.stdout\.write\(")
    allowed = {("plain.py", "rich.text"), ("plain.py", "typer.echo("), ("output.py", "typer.echo(")}
    # Of rich's console: texts of ours, a PlainText, or one that went through plain().
    allowed |= {("output.py", "print("), ("tables.py", "print(")}
    found = set()
    for path in CLIENT_SOURCES:
        if "cli" in path.parts:
            found |= {(Path(path).name, way) for way in ways.findall(path.read_text())}
    assert found == allowed
