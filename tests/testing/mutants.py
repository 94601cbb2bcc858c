"""Mistakes that authors of adapters make, as changes to examples/my_broker.py, each with the number of
the card that catches it."""

from dataclasses import dataclass

SEND = "answer = await self._rest.ask(method, path, deadline, method == "
POST = 'return await self._send("POST", "/orders", ticket, deadline, body_of(ticket))'
PUT = 'return await self._send("PUT", path, ticket, deadline, body_of(ticket))'
DELETE = 'return await self._send("DELETE", path, ticket, deadline, None)'
STREAMED = "                yield event_of(row)\n"
SNAPSHOT_FILLS = "executions=tuple(fill_event(fill) for fill in fills if fill.at >= since)"
LOOKED_UP_FILLS = "events += [fill_event(fill) for fill in fills if fill.order == order.id]"
ASKED = f'        {SEND}"DELETE", json=body)\n'
REFUSED = "        if answer.status in (404, 422):\n"


@dataclass(frozen=True, slots=True)
class Mutant:
    mistake: str
    old: str
    new: str
    card: int


def again(command: str, then: str) -> str:
    """The command, and what is done when its answer is lost."""
    return f"try:\n            {command}\n        except AnswerUnclear:\n            {then}"


def swallowed(then: str) -> str:
    asked = ASKED.replace("        answer", "            answer", 1)
    return f"        try:\n{asked}        except AnswerUnclear:\n            {then}\n"


def keyed(prefix: str) -> str:
    """A fill under a key of its own."""
    return (
        "msgspec.structs.replace("
        f'fill_event(fill), dedupe_key="my_broker:{prefix}" + fill.id, exec_id="{prefix}" + fill.id)'
    )


MUTANTS = (
    Mutant("a SELL is sent as a BUY", "SIDE_NAMES[ticket.side]", '"buy"', 27),
    Mutant(
        "the side of every report is the other one",
        "SIDE_NAMES = {side: name for name, side in SIDES.items()}\n",
        "SIDE_NAMES = {side: name for name, side in SIDES.items()}\n"
        'SIDES = {"buy": OrderSide.SELL, "sell": OrderSide.BUY}\n',
        50,
    ),
    Mutant(
        "the fill of a SELL is reported as one of a BUY",
        "side=SIDES[fill.side]",
        "side=OrderSide.BUY",
        11,
    ),
    Mutant("positions have the other sign", "quantity=position.qty", "quantity=-position.qty", 61),
    Mutant(
        "the stream leaves out fills in part",
        STREAMED,
        "                if row.fill and row.fill.total < row.order.qty:\n"
        f"                    continue\n{STREAMED}",
        15,
    ),
    Mutant(
        "a snapshot has the fills of open orders alone",
        SNAPSHOT_FILLS,
        "executions=tuple(fill_event(fill) for fill in fills\n"
        "                if fill.order in {order.id for order in orders})",
        25,
    ),
    Mutant(
        "fills of while the session was closed are reported by nobody",
        "if fill.at >= since)",
        "if fill.at >= taken_at)",
        62,
    ),
    Mutant(
        "a snapshot reports fills under other keys than the stream",
        SNAPSHOT_FILLS,
        f"executions=tuple({keyed('s')} for fill in fills if fill.at >= since)",
        25,
    ),
    Mutant(
        "the key of a fill is another one each time",
        'dedupe_key=f"my_broker:{fill.id}"',
        'dedupe_key=f"my_broker:{fill.id}:{datetime.now(UTC)}"',
        25,
    ),
    Mutant(
        "a look-up reports fills under other keys than the stream",
        LOOKED_UP_FILLS,
        f"events += [{keyed('l')} for fill in fills if fill.order == order.id]",
        51,
    ),
    Mutant("a CREATE without an answer is sent again", POST, again(POST, POST), 71),
    Mutant(
        "a CREATE without an answer is sent again under another id",
        POST,
        again(
            POST,
            'body = {**body_of(ticket), "cid": ticket.client_order_id + "r"}\n            '
            + POST.replace("body_of(ticket)", "body"),
        ),
        70,
    ),
    Mutant("a CANCEL without an answer is sent again", DELETE, again(DELETE, DELETE), 45),
    Mutant("a fill has the quantity of all so far", "quantity=fill.qty", "quantity=fill.total", 15),
    Mutant("a fill counts itself alone", "cum_quantity=fill.total", "cum_quantity=fill.qty", 15),
    Mutant(
        "a refused CANCEL is called done",
        REFUSED,
        '        if method == "DELETE" and answer.status == 422:\n'
        f"            return CommandResult(outcome=Outcome.ACKED)\n{REFUSED}",
        43,
    ),
    Mutant(
        "a refused REPLACE is called done",
        REFUSED,
        '        if method == "PUT" and answer.status == 422:\n'
        f"            return CommandResult(outcome=Outcome.ACKED)\n{REFUSED}",
        33,
    ),
    Mutant(
        "whole shares are sent",
        "amount_text(ticket.quantity)",
        "str(int(ticket.quantity) or 1)",
        29,
    ),
    Mutant(
        "a price is sent with one decimal",
        "amount_text(ticket.limit_price)",
        'f"{ticket.limit_price:.1f}"',
        29,
    ),
    Mutant(
        "a price is read with one decimal", "price=fill.price", "price=round(fill.price, 1)", 29
    ),
    Mutant("a price is read in cents", "price=fill.price", "price=fill.price * 100", 10),
    Mutant(
        "a quantity is read as whole shares",
        "quantity=fill.qty",
        "quantity=Decimal(int(fill.qty) or 1)",
        29,
    ),
    Mutant(
        "six digits of a quantity are sent",
        "amount_text(ticket.quantity)",
        'format(ticket.quantity, ".6g")',
        29,
    ),
    Mutant(
        "a command without an answer is called not sent",
        ASKED,
        swallowed('raise NotSent("no answer") from None'),
        70,
    ),
    Mutant(
        "a command without an answer is called taken",
        ASKED,
        swallowed("return CommandResult(outcome=Outcome.ACKED)"),
        71,
    ),
    Mutant(
        "a command without an answer is called refused",
        ASKED,
        swallowed('return rejected("error")'),
        70,
    ),
    Mutant(
        "a CANCEL without an answer is called refused",
        DELETE,
        again(DELETE, 'return rejected("error")'),
        45,
    ),
    Mutant(
        "a CANCEL without an answer is called taken",
        DELETE,
        again(DELETE, "return CommandResult(outcome=Outcome.ACKED)"),
        46,
    ),
    Mutant(
        "a look-up without an answer is called a proof",
        "return LookupUnknown(str(error))",
        "return Absent()",
        55,
    ),
    Mutant(
        "a look-up's error is called a proof",
        "return None if answer.status == 404 else",
        "return None if answer.status != 200 else",
        54,
    ),
    Mutant(
        "the stream goes on in silence without a connection",
        "            for row in await self._read_events():\n",
        "            try:\n                rows = await self._read_events()\n"
        "            except BrokerUnavailable:\n                rows = []\n"
        "            for row in rows:\n",
        72,
    ),
    Mutant(
        "a command that is too old is sent",
        "self._clock.monotonic() > ticket.not_after",
        "False",
        24,
    ),
    Mutant(
        "a used id is called a refusal",
        "return CommandResult(outcome=Outcome.UNKNOWN, code=DUPLICATE_ID)",
        'return rejected("duplicate")',
        23,
    ),
    Mutant("fees are lost", "        fee=fill.fee,\n", "", 10),
    Mutant(
        "all fills of an order have one key",
        'dedupe_key=f"my_broker:{fill.id}"',
        'dedupe_key=f"my_broker:{fill.order}:fill"',
        15,
    ),
    Mutant(
        "the client order id is cut",
        '"cid": ticket.client_order_id,',
        '"cid": ticket.client_order_id[:12],',
        12,
    ),
    Mutant("GTC is sent as a day order", "TIMES[ticket.time_in_force]", '"day"', 21),
    Mutant(
        "a REPLACE is sent with what is left",
        PUT,
        'found = await self._find(ticket.orig_client_order_id or "", deadline)\n'
        "        left = ticket.quantity - (found.filled if found else 0)\n"
        '        body = {**body_of(ticket), "qty": amount_text(left)}\n'
        f"        {PUT.replace('body_of(ticket)', 'body')}",
        31,
    ),
    Mutant(
        "a command that is out of time is sent",
        SEND,
        SEND.replace("deadline,", "deadline + 60,"),
        24,
    ),
    Mutant("times have no zone", "venue_time=fill.at", "venue_time=datetime.now()", 10),
    Mutant(
        "a limit order is sent without its limit",
        "if ticket.limit_price is not None:",
        "if False:",
        12,
    ),
    Mutant(
        "a REPLACE is sent without its limit",
        PUT,
        'body = body_of(ticket)\n        body.pop("limit", None)\n'
        f"        {PUT.replace('body_of(ticket)', 'body')}",
        30,
    ),
    Mutant(
        "a SELL of what is not held goes short",
        "SIDE_NAMES[ticket.side]",
        'SIDE_NAMES[ticket.side].replace("sell", "short")',
        27,
    ),
    Mutant(
        "the end of an order counts nothing as filled",
        "cum_quantity=order.filled",
        "cum_quantity=Decimal(0)",
        41,
    ),
    Mutant(
        "a snapshot has the first open order alone",
        "for order in orders),\n            executions",
        "for order in orders[:1]),\n            executions",
        65,
    ),
)
