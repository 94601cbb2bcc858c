"""The tools of agents: reads, and with them orders. None changes limits, keys, credentials or
accounts, or resumes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from trading_intents_client.agents.arguments import (
    AccountArguments,
    AccountPageArguments,
    ClosePositionArguments,
    HaltArguments,
    IntentArguments,
    ListOrdersArguments,
    OptionalSymbolArguments,
    OrderArguments,
    PageArguments,
    PlaceOrderArguments,
    ReplaceOrderArguments,
    SymbolArguments,
    ToolArguments,
)
from trading_intents_client.agents.refusals import explain_triggered, read_budget
from trading_intents_client.asynchronous.client import AsyncTradingClient
from trading_intents_client.asynchronous.orders import AsyncPlacedOrder
from trading_intents_client.asynchronous.pages import AsyncPages
from trading_intents_client.asynchronous.requests import (
    cancel_command,
    create_command,
    replace_command,
)
from trading_intents_client.errors import NotFound
from trading_intents_client.types.accounts import Caller
from trading_intents_client.types.controls import LimitsRecord

PAPER_BROKER = "paper"
READ_CONTROLS = "read_controls"


@dataclass(frozen=True)
class AgentTool:
    """A tool, the policy of `GET /v1/caller` that its key needs (None: any key), and what its calls
    do."""

    run: Callable[[AsyncTradingClient, Any], Awaitable[object]]
    arguments: type[ToolArguments]
    policy: str | None
    description: str
    is_trading: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    def is_offered(self, caller: Caller, allow_trading: bool) -> bool:
        return (allow_trading or not self.is_trading) and (
            self.policy is None or self.policy in caller.policies
        )


async def list_accounts(client: AsyncTradingClient, asked: PageArguments) -> object:
    return await client.accounts().page(limit=asked.limit, cursor=asked.next_cursor)


async def get_balances(client: AsyncTradingClient, asked: AccountArguments) -> object:
    return await client.account(asked.account_id).balances()


async def list_positions(client: AsyncTradingClient, asked: AccountPageArguments) -> object:
    return await _page(client.account(asked.account_id).positions(), asked)


async def list_orders(client: AsyncTradingClient, asked: ListOrdersArguments) -> object:
    orders = client.account(asked.account_id).orders(
        state=asked.state, symbol=asked.symbol, intent_id=asked.intent_id, order="desc"
    )
    return await _page(orders, asked)


async def list_trades(client: AsyncTradingClient, asked: AccountPageArguments) -> object:
    return await _page(client.account(asked.account_id).trades(order="desc"), asked)


async def _page(pages: AsyncPages[Any], asked: PageArguments) -> object:
    return await pages.page(limit=asked.limit, cursor=asked.next_cursor)


async def get_quote(client: AsyncTradingClient, asked: SymbolArguments) -> object:
    account = await client.account(asked.account_id).get()
    if account.broker == PAPER_BROKER:
        return await client.market.quote(asked.symbol)
    return await client.market.reference_price(asked.symbol, account_id=asked.account_id)


async def get_limits(client: AsyncTradingClient, asked: OptionalSymbolArguments) -> object:
    found: dict[str, object] = {"api_key": await read_budget(client)}
    if READ_CONTROLS not in (await client.organization.caller()).policies:
        return found
    controls = client.account(asked.account_id).controls
    found["organization"] = await _limits(client.organization.limits())
    found["account"] = await _limits(controls.limits())
    if asked.symbol is not None:
        found["symbol"] = await _limits(controls.symbol_limits(asked.symbol))
    return found


async def _limits(read: Awaitable[LimitsRecord]) -> LimitsRecord | None:
    try:
        return await read
    except NotFound:
        return None


async def evaluate_order(client: AsyncTradingClient, asked: OrderArguments) -> object:
    judged = await client.account(asked.account_id).controls.evaluate(asked.symbol, _create(asked))
    return {
        "allowed": judged.allowed,
        "triggered": await explain_triggered(client, judged.triggered, asked),
    }


async def place_order(client: AsyncTradingClient, asked: PlaceOrderArguments) -> AsyncPlacedOrder:
    account = client.account(asked.account_id)
    return await account.submit(_create(asked), idempotency_key=asked.idempotency_key)


def _create(asked: OrderArguments) -> Any:
    return create_command(
        asked.symbol,
        asked.order_side,
        asked.quantity,
        limit=asked.limit_price,
        stop=asked.stop_price,
        take_profit=asked.take_profit,
        stop_loss=asked.stop_loss,
        time_in_force=asked.time_in_force,
    )


async def replace_order(
    client: AsyncTradingClient, asked: ReplaceOrderArguments
) -> AsyncPlacedOrder:
    command = replace_command(
        asked.intent_id,
        asked.quantity,
        limit=asked.limit_price,
        stop=asked.stop_price,
        time_in_force=asked.time_in_force,
    )
    return await client.account(asked.account_id).submit(
        command, idempotency_key=asked.idempotency_key
    )


async def cancel_order(client: AsyncTradingClient, asked: IntentArguments) -> AsyncPlacedOrder:
    return await client.account(asked.account_id).submit(cancel_command(asked.intent_id))


async def cancel_all(client: AsyncTradingClient, asked: OptionalSymbolArguments) -> object:
    return await client.account(asked.account_id).cancel_all(asked.symbol)


async def close_position(
    client: AsyncTradingClient, asked: ClosePositionArguments
) -> AsyncPlacedOrder:
    account = client.account(asked.account_id)
    return await account.close_position(asked.symbol, idempotency_key=asked.idempotency_key)


async def halt(client: AsyncTradingClient, asked: HaltArguments) -> object:
    return await client.account(asked.account_id).controls.halt(asked.reason)


UNDONE = "What was filled cannot be undone."
TOOLS = (
    AgentTool(
        list_accounts,
        PageArguments,
        "read_accounts",
        "The accounts that this key can reach, with their ids.",
    ),
    AgentTool(
        get_balances,
        AccountArguments,
        "read_accounts",
        "An account's cash, buying power and equity.",
    ),
    AgentTool(
        list_positions,
        AccountPageArguments,
        "read_intents",
        "Everything that an account holds or held, with its cost, value and results. A closed "
        "one has quantity 0.",
    ),
    AgentTool(
        list_orders,
        ListOrdersArguments,
        "read_intents",
        "An account's orders, newest first: their status, what was filled, and why one ended.",
    ),
    AgentTool(
        list_trades, AccountPageArguments, "read_intents", "An account's executions, newest first."
    ),
    AgentTool(
        get_quote,
        SymbolArguments,
        "read_accounts",
        "A symbol's price in the account's market: bid and ask of the paper broker, elsewhere "
        "the last known price.",
    ),
    AgentTool(
        get_limits,
        OptionalSymbolArguments,
        None,
        "The limits by which orders are judged: the budget of this key (`api_key`, with what is "
        "`used` of it today), and those of the organization, the account and a symbol, where the "
        "key may read them. null: there are none.",
    ),
    AgentTool(
        evaluate_order,
        OrderArguments,
        READ_CONTROLS,
        "Whether controls and limits would let an order pass now, and what is left of each limit "
        "that would not. It places nothing.",
    ),
    AgentTool(
        place_order,
        PlaceOrderArguments,
        "submit_intent",
        "Places an order with real effect at the account's broker. Without prices it is a market "
        "order. The answer means that it is recorded and will be sent; `list_orders` with its "
        f"intent_id has the outcome. {UNDONE} Safe to repeat with the same idempotency_key.",
        is_trading=True,
    ),
    AgentTool(
        replace_order,
        ReplaceOrderArguments,
        "submit_intent",
        "Changes an open order of the same kind: quantity is the new total, and its prices are "
        f"given again, changed or not. {UNDONE} Safe to repeat with the same idempotency_key.",
        is_trading=True,
    ),
    AgentTool(
        cancel_order,
        IntentArguments,
        "submit_intent",
        "Asks for an open order to be cancelled. A cancelled order cannot be restored. Safe to "
        "repeat.",
        is_trading=True,
    ),
    AgentTool(
        cancel_all,
        OptionalSymbolArguments,
        "submit_intent",
        "Asks for up to 500 open orders of an account, or of one symbol, to be cancelled; `more` "
        "says to call again. Cancelled orders cannot be restored. Safe to repeat.",
        is_trading=True,
    ),
    AgentTool(
        close_position,
        ClosePositionArguments,
        "submit_intent",
        "Closes a position by a market order for what open orders do not close already. It passes "
        f"a halt. {UNDONE} Safe to repeat with the same idempotency_key.",
        is_trading=True,
    ),
    AgentTool(
        halt,
        HaltArguments,
        "halt_account",
        "Stops trading in an account at once and cancels its open orders. Only a person can "
        "resume it. Safe to repeat.",
        is_trading=True,
    ),
)
