"""A user's program is checked by mypy as strictly as ours, and editors find what they show."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import httpx
import pytest

import trading_intents_client
from trading_intents_client import Account, Order, TradingClient, errors
from trading_intents_client.stream import events
from trading_intents_client.types import accounts, controls, enums, market, operations, trading

PROGRAM = """
from datetime import UTC, datetime
from decimal import Decimal

from trading_intents_client import FILLED, AsyncTradingClient, GapEvent, NoPosition, OrderEvent
from trading_intents_client import TradingClient, errors


def main() -> None:
    with TradingClient("http://127.0.0.1:8080", api_key="k") as client:
        account = client.account("a")
        order = account.buy("AAPL", 10, limit=Decimal("187.5")).wait(until=FILLED, timeout=5)
        price: Decimal | None = order.average_price
        at: datetime = order.created_at
        for found in account.orders(status="NEW", created_after=datetime.now(UTC)):
            found.replace(quantity=5).wait()
        for event in account.events():
            if isinstance(event, OrderEvent):
                print(event.order.filled_quantity + 1)
            elif isinstance(event, GapEvent):
                print(len(event.orders))
        try:
            account.sell("AAPL", "1.5", time_in_force="DAY")
            account.close_position("AAPL")
        except NoPosition as none:
            print(none.status)
        except errors.ControlRejected as refused:
            print(refused.triggered[0].reason, refused.request_id)
        print(price, at, account.balances().cash, client.market.quote("AAPL").bid)


async def work() -> None:
    async with AsyncTradingClient() as client:
        account = await client.find_account("sim")
        async for position in account.positions():
            print(position.quantity * 2)
        print((await (await account.buy("AAPL", 1)).wait()).filled_quantity)
"""
WRONG = {
    "account.buy('AAPL', 1.5)": "arg-type",
    "account.buy('AAPL', 1, limits=1)": "call-arg",
    "account.buy('AAPL', 1, time_in_force='gtc')": "arg-type",
    "account.orders(status='OPEN')": "arg-type",
    "account.order('x').nothing": "attr-defined",
    "len(account.balances().cash)": "arg-type",
}


def check(program: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        f"--cache-dir={program.parent}",
        str(program),
    ]
    done = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, timeout=110, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_strict_passes_for_a_users_program_and_finds_its_faults(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    assert check(file) == ""
    lines = "".join(f"    {line}\n" for line in WRONG)
    file.write_text(
        "from trading_intents_client import Account\n\n\ndef work(account: Account) -> "
        f"None:\n{lines}"
    )
    received = check(file).splitlines()
    assert [line.rpartition("[")[2].rstrip("]") for line in received if "error:" in line] == [
        *WRONG.values()
    ]


@pytest.mark.parametrize("kind", [TradingClient, Account, Order])
def test_editors_find_the_docstring_and_the_signature_of_each_method(kind: type) -> None:
    """In the source, as editors do not run it: each is a `def` with its docstring."""
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            source = inspect.getsource(member)
            assert f"def {name}(" in source
            assert '"""' in source
            assert "**" not in str(inspect.signature(member))


def test_every_public_name_says_what_it_is() -> None:
    """Also the classes of what answers, events and errors hold, which a user meets without
    importing them."""
    modules = (
        trading_intents_client,
        errors,
        events,
        accounts,
        controls,
        enums,
        market,
        operations,
        trading,
    )
    kinds = [
        kind
        for module in modules
        for name, kind in vars(module).items()
        if not name.startswith("_")
    ]
    ours = [
        kind
        for kind in kinds
        if getattr(kind, "__module__", "").startswith(trading_intents_client.__name__)
    ]
    classes = [kind for kind in ours if inspect.isclass(kind)]
    assert len(classes) > 100
    assert sorted(kind.__name__ for kind in classes if not vars(kind).get("__doc__")) == []
    assert (
        sorted(made.__name__ for made in ours if inspect.isfunction(made) and not made.__doc__)
        == []
    )
    for kind in classes:
        for name, member in vars(kind).items():
            if not name.startswith("_") and (
                inspect.isfunction(member) or isinstance(member, property)
            ):
                assert inspect.getdoc(member) or hasattr(httpx.Auth, name), (
                    f"{kind.__name__}.{name}"
                )


@pytest.mark.parametrize("name", [name for name in vars(enums) if name.endswith("Name")])
def test_each_name_of_an_enum_may_be_written_as_text(name: str) -> None:
    kind, literal = get_args(vars(enums)[name])
    assert get_args(literal) == tuple(kind)


def test_every_error_is_exported() -> None:
    ours = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    ]
    assert len(ours) > 40
    assert {kind.__name__ for kind in ours} <= set(trading_intents_client.__all__)


def test_everything_that_is_public_is_exported_and_marked_as_typed() -> None:
    assert all(hasattr(trading_intents_client, name) for name in trading_intents_client.__all__)
    assert (Path(trading_intents_client.__file__).parent / "py.typed").exists()
