"""Commands about orders: buy, sell, short, replace, cancel."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Annotated, TypedDict

import typer

from trading_intents_client import (
    Account,
    ConnectionState,
    Order,
    OrderSide,
    PlacedOrder,
    TimeInForce,
    TradingError,
    WaitTimeout,
    cancel_command,
    create_command,
)
from trading_intents_client.cli.commands.arguments import (
    WAIT_SECONDS,
    AccountName,
    AsJson,
    IdempotencyKey,
    Limit,
    Oco,
    OrderId,
    Quantity,
    Stop,
    StopLoss,
    StopLossLimit,
    Symbol,
    TakeProfit,
    Tif,
    Timeout,
    Trail,
    TrailBps,
    Wait,
    find_account,
    find_order_id,
    parse_amount,
)
from trading_intents_client.cli.login import open_client
from trading_intents_client.cli.output import REFUSED, UNREACHABLE, exit_codes, for_each, print_json
from trading_intents_client.cli.plain import echo
from trading_intents_client.cli.reasons import order_reason
from trading_intents_client.cli.tables import amount, rounded

SIDES = {"buy": OrderSide.BUY, "sell": OrderSide.SELL, "short": OrderSide.SELL_SHORT}


class Terms(TypedDict):
    limit: Decimal | None
    stop: Decimal | None
    trail: Decimal | None
    trail_bps: int | None
    time_in_force: TimeInForce | None


def add_order_commands(cli: typer.Typer, panel: str) -> None:
    for name, verb in (("buy", "Buy"), ("sell", "Sell"), ("short", "Sell short")):
        text = (
            f"{verb}: at the market, with --limit and --stop, or with a stop that follows "
            "(--trail)."
        )
        cli.command(name=name, help=text, rich_help_panel=panel)(_placing(name))
    for command in (cancel, replace):
        cli.command(rich_help_panel=panel)(command)


def _placing(name: str) -> Callable[..., None]:
    def place(
        symbol: Symbol,
        quantity: Quantity,
        limit: Limit = None,
        stop: Stop = None,
        trail: Trail = None,
        trail_bps: TrailBps = None,
        take_profit: TakeProfit = None,
        stop_loss: StopLoss = None,
        stop_loss_limit: StopLossLimit = None,
        oco: Oco = None,
        tif: Tif = None,
        account: AccountName = "",
        wait: Wait = False,
        timeout: Timeout = WAIT_SECONDS,
        key: IdempotencyKey = None,
        as_json: AsJson = False,
    ) -> None:
        if stop_loss_limit is not None and stop_loss is None:
            raise typer.BadParameter("--stop-loss-limit is the limit of a --stop-loss")
        options = {
            "--limit": limit,
            "--stop": stop,
            "--trail": trail,
            "--trail-bps": trail_bps,
            "--take-profit": take_profit,
            "--stop-loss": stop_loss,
            "--stop-loss-limit": stop_loss_limit,
            "--oco": oco,
            "--tif": tif,
            "--account": account or None,
        }
        flags = {"--wait": wait, "--timeout": timeout if wait else None, "--json": as_json}
        with (
            exit_codes(typed(name, symbol, amount(quantity), options, flags)),
            open_client(os.environ) as client,
        ):
            chosen = find_account(client, account)
            _warn_of_broker(chosen, "will wait for it, or end EXPIRED")
            terms = Terms(
                limit=limit, stop=stop, trail=trail, trail_bps=trail_bps, time_in_force=tif
            )
            command = create_command(
                symbol,
                SIDES[name],
                quantity,
                **terms,
                take_profit=take_profit,
                stop_loss=_stop_prices(stop_loss, stop_loss_limit),
                one_cancels_other=oco,
            )
            placed = chosen.submit(command, idempotency_key=key)
            if wait:
                _warn_of_broker(chosen, "waits")
                _report_end(placed, timeout, as_json)
                return
            lines = [
                f"accepted: {name} {amount(quantity)} {symbol.upper()}, order {placed.intent_id}"
            ]
            for leg in placed.legs:
                lines.append(f"  {leg.leg}: order {leg.intent_id}")
            print_json(placed) if as_json else echo(*lines)
            _warn_of_broker(chosen, "waits")

    return place


def _stop_prices(
    stop: Decimal | None, limit: Decimal | None
) -> Decimal | tuple[Decimal, Decimal] | None:
    return stop if stop is None or limit is None else (stop, limit)


def _warn_of_broker(account: Account, consequence: str) -> None:
    """Before the order, while it can be left, and after it; a caller that may not read accounts
    gets none."""
    with suppress(TradingError):
        connection = account.get().connection
        if connection != ConnectionState.CONNECTED:
            echo(
                f"warning: the account's broker is {connection}: the order {consequence}", err=True
            )


def typed(*words: str | Mapping[str, object]) -> list[str]:
    """A command as it was typed: words, options with their values, and flags."""
    line: list[str] = []
    for word in words:
        if isinstance(word, str):
            line.append(word)
            continue
        for option, value in word.items():
            if value is True:
                line.append(option)
            elif value is not None and value is not False:
                line += [option, amount(value) if isinstance(value, Decimal) else str(value)]
    return line


def _report_end(placed: PlacedOrder, timeout: float, as_json: bool) -> None:
    try:
        order = placed.wait(timeout=timeout)
    except (TradingError, KeyboardInterrupt) as error:
        # The order is placed, whatever became of the wait: whoever takes it for refused would place
        # it again.
        print_json(placed) if as_json else echo(
            f"accepted: order {placed.intent_id}, whose end was not seen"
        )
        if isinstance(error, WaitTimeout | KeyboardInterrupt):
            raise
        echo(f"Outcome unknown: {error}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    _print_order(order, as_json)
    if order.order_status != "FILLED":
        raise typer.Exit(REFUSED)


def _print_order(order: Order, as_json: bool) -> None:
    if as_json:
        print_json(order)
        return
    line = f"{order.order_side} {amount(order.quantity)} {order.symbol}: {order.order_status}"
    if order.filled_quantity:
        average = rounded(order.average_price, order.limit_price, order.stop_price)
        line += f" {amount(order.filled_quantity)} at {amount(average)}"
    reason = order_reason(order)
    echo(line + (f", {reason}" if reason else "") + f", order {order.order_id}")


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids of orders, or their beginnings."),
    ] = None,
    all_orders: Annotated[
        bool, typer.Option("--all", help="All open orders of the account.")
    ] = False,
    symbol: Annotated[
        str | None, typer.Option("--symbol", help="With --all: of this symbol only.")
    ] = None,
    account: AccountName = "",
    as_json: AsJson = False,
) -> None:
    """Cancel orders by their ids, or all open ones."""
    if bool(ids) == all_orders or (symbol is not None and not all_orders):
        raise typer.BadParameter("name orders, or use --all, also with --symbol")
    with exit_codes(), open_client(os.environ) as client:
        chosen = find_account(client, account)

        def cancel_one(order_id: str) -> None:
            placed = chosen.submit(cancel_command(find_order_id(chosen, order_id)))
            print_json(placed) if as_json else echo(f"accepted: cancel {placed.intent_id}")

        for_each(ids or (), cancel_one)
        count = 0
        is_more = all_orders
        while is_more:
            answer = chosen.cancel_all(symbol)
            for submitted in answer.intents:
                print_json(submitted) if as_json else echo(
                    f"accepted: cancel {submitted.intent_id}"
                )
            count = count + len(answer.intents)
            is_more = answer.more
        if all_orders and not count and not as_json:
            pending = answer.pending
            echo(f"already on their way: {pending} cancels" if pending else "no open orders")


def replace(
    order_id: OrderId,
    quantity: Annotated[
        Decimal | None,
        typer.Option("--quantity", parser=parse_amount, help="The new total quantity."),
    ] = None,
    limit: Limit = None,
    stop: Stop = None,
    trail: Trail = None,
    trail_bps: TrailBps = None,
    tif: Tif = None,
    account: AccountName = "",
    key: IdempotencyKey = None,
    as_json: AsJson = False,
) -> None:
    """Change an order's quantity, prices or time in force; what is left out stays."""
    prices = {"--limit": limit, "--stop": stop, "--trail": trail, "--trail-bps": trail_bps}
    changes: dict[str, object] = {"--quantity": quantity, **prices, "--tif": tif}
    if all(value is None for value in changes.values()):
        raise typer.BadParameter(f"say what to change: {', '.join(changes)}")
    options = changes | {"--account": account or None}
    with (
        exit_codes(typed("replace", order_id, options, {"--json": as_json})),
        open_client(os.environ) as client,
    ):
        chosen = find_account(client, account)
        order = chosen.order(find_order_id(chosen, order_id))
        terms = Terms(limit=limit, stop=stop, trail=trail, trail_bps=trail_bps, time_in_force=tif)
        placed = order.replace(quantity=quantity, **terms, idempotency_key=key)
        print_json(placed) if as_json else echo(f"accepted: replace {placed.intent_id}")
