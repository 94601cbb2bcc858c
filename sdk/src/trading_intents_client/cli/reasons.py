"""Reasons of orders as sentences, each followed by its stable code."""

from typing import Any

SENTENCES = {
    # The platform's own ends of an order.
    "stale": "it could not be sent in time and was given up",
    "before_send": "it was cancelled before it was sent",
    "halted": "a halt came before it was sent",
    "resumed": "its halt was ended before it was sent",
    "not_delivered": "it never reached the broker",
    "cancel_not_delivered": "the broker did not carry out the cancel",
    "cancel_requested": "it is to be cancelled, so it was not replaced",
    "replaced_by_broker": "the broker itself changed it",
    "account_disabled": "the account is disabled",
    # Controls and limits.
    "organization_halted": "trading of the organization is halted",
    "organization_manually_disabled": "trading of the organization is switched off",
    "account_halted": "the account is halted",
    "account_manually_disabled": "trading of the account is switched off",
    "symbol_manually_disabled": "trading of the symbol is switched off",
    "outside_trading_window": "the symbol is not traded at this time",
    "max_order_quantity": "its quantity is above the limit for an order",
    "max_order_notional": "its value is above the limit for an order",
    "price_collar_bps": "its price is too far from the market's",
    "max_open_orders": "there are as many open orders as the limit allows",
    "max_position_quantity": "the position would exceed its limit",
    "max_orders_per_minute": "there were as many orders in a minute as the limit allows",
    "allow_short": "short selling is not allowed",
    "allowed_symbols": "the symbol is not among the allowed ones",
    "duplicate_window_millis": "an equal order was placed just before",
    "max_daily_loss": "today's loss has reached its limit",
    "max_daily_notional": "the key's orders of today would exceed their limit",
    "no_reference_price": "no price is known to judge it by",
    "position_unknown": "the broker has not reported the position yet",
    "pair_filled": "the other order of its pair was filled",
    "ended_by_broker": "the broker no longer works it",
    "broker_failed": "the paper broker could not work it, by an error of its own",
    "entry_ended": "the order that it belongs to ended unfilled",
    "entry_rejected": "the order that it belongs to was refused",
    # The paper broker's.
    "insufficient_buying_power": "it costs more than the buying power",
    "no_position_to_sell": "the account holds less than it sells",
    "position_is_long": "the account holds the symbol, so it cannot be sold short",
    "quantity_off_step": "the quantity is no multiple of the symbol's step",
    "price_off_tick": "the price is no multiple of the symbol's tick",
    "immediate_or_cancel": "what could not be filled at once was cancelled",
    "fill_or_kill": "it could not be filled at once and whole",
    "day_ended": "its trading day has ended",
    "good_till_cancel_ended": "it was open as long as the broker keeps orders",
    "too_late": "it had ended before",
    "unknown_order": "the broker does not know it",
    "another_order": "the broker has another order under its id",
    "too_many_working_orders": "the account has as many working orders as the broker takes",
}


def explain(code: str | None) -> str | None:
    """The sentence with its code; what a broker says in words of its own stays as it is."""
    return f"{SENTENCES[code]} ({code})" if code in SENTENCES else code


def order_reason(order: Any) -> str | None:
    """The broker's or the platform's own explanation (`detail`), else the sentence of the code."""
    detail = order.detail
    code = order.reason
    said = f"{detail} ({code})" if detail and code and detail != code else detail or explain(code)
    return (
        ", ".join(filter(None, ("UNPROTECTED" if "unprotected" in order.flags else None, said)))
        or None
    )
