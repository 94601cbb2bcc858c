"""A worker's turn of two trips as a specification that can be searched: the first locks and reads,
the second writes and commits, then the broker is called. Safety is `broken` of every state,
liveness `unclean` of every end."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.execution.model.cases import FAULTS, Config, Design
from tests.execution.model.search import FAULT, MAY, MUST, Step
from tests.execution.model.settling import Settling
from tests.execution.model.states import (
    ABSENT,
    ACCEPTED,
    AGAIN,
    ASKED,
    ASKING,
    BEGUN,
    CANCEL,
    CANCELLED,
    COMMANDS,
    COMMITTED,
    CREATE,
    DONE,
    DOUBT,
    EVENTS,
    FENCED,
    FILLED,
    GONE,
    HEADS,
    IDLE,
    MARKED,
    MISSING,
    NO_NEWS,
    OUR_ENDS,
    OUT,
    PART,
    READ,
    REFUSED,
    REJECTED,
    REPLACE,
    REPLACED,
    SETTLED,
    SYSTEM,
    TURN,
    UNCLEAR,
    UNFENCED,
    UNSENT,
    VERBS,
    WRITTEN,
    News,
    Order,
    State,
    Turn,
    Worker,
    Write,
    fills,
    is_final,
    is_unwanted,
    merge,
    name_command,
    named,
    op_news,
    put,
    spend,
    without,
)
from tests.execution.model.venue import Venue

Rows = tuple[int, ...]


class Model:
    """Statements are steps of their own, with a snapshot each. The API's transaction is one step: it
    locks the order that it is about, so it comes wholly before or after a turn that has the lock."""

    def __init__(self, design: Design, config: Config) -> None:
        self.design = design
        self.config = config
        self.settling = Settling(design, config)
        self.venue = Venue(design, config)
        self.count = len(config.orders)
        self.asked = [["CRX".index(each) for each in commands[1:]] for commands in config.orders]

    def start(self) -> State:
        """W1 holds the lease; the CREATEs are accepted."""
        orders = (Order(0, 0, (UNSENT, GONE, GONE, GONE)),) * self.count
        return State(
            owner=0,
            token=1,
            is_expired=False,
            is_halted=False,
            position=0,
            orders=orders,
            broker=(0,) * self.count,
            wire=(),
            workers=(self.new_worker()._replace(phase=IDLE, token=1), self.new_worker()),
            turns=(),
            read=(),
            budget=tuple(self.config.faults.get(each, 0) for each in FAULTS),
            wrong="",
        )

    def new_worker(self) -> Worker:
        none = (0,) * self.count
        return Worker(OUT, False, 0, (NO_NEWS,) * self.count, none, none)

    # What must hold. Steps set `wrong` too.

    def broken(self, state: State) -> str:
        for index, (order, real) in enumerate(zip(state.orders, state.broker, strict=True)):
            if order.head != order.journal:
                return f"(c) the head says {named(order.head)}, the journal {named(order.journal)}"
            for command in COMMANDS:
                is_asked = command == CREATE or order.head & ASKED[command]
                is_settled = bool(order.head & SETTLED[command])
                if is_asked and (order.rows[command] == GONE) != is_settled:
                    return f"(b) the row of {VERBS[command]} is gone without an outcome, or not"
            ended = order.head & (OUR_ENDS if self.config.is_bounded else REJECTED)
            if ended and real & ACCEPTED:
                return f"(e) ended as {named(ended)}, and the broker has it"
            is_travelling = any(sent[2:] == (index, CREATE) for sent in state.wire)
            if ended and is_travelling and self.config.is_bounded:
                return f"(d) ended as {named(ended)}, and a CREATE is on its way to the broker"
        filled = sum(fills(order.journal) for order in state.orders)
        if state.position != filled:
            return f"(c) the holding has {state.position} fills, the journal {filled}"
        return state.wrong

    def unclean(self, state: State) -> str:
        for index, (order, real) in enumerate(zip(state.orders, state.broker, strict=True)):
            for command in COMMANDS:
                if order.rows[command]:
                    return f"(b) {name_command(state, index, command)} stays open for ever"
            if order.head & EVENTS != real:
                return f"(c) the head says {named(order.head & EVENTS)}, the broker {named(real)}"
            if is_unwanted(order.head):
                return f"(e) ended as {named(order.head & OUR_ENDS)}, works, and nobody cancels it"
        is_open = any(turn.phase < COMMITTED for turn in state.turns)
        return "(b) something is left on its way" if state.wire or is_open else ""

    def steps(self, state: State) -> Iterator[Step]:
        yield from self.api(state)
        yield from self.leases(state)
        for number in range(len(state.turns)):
            yield from self.server(state, number)
        for number in range(len(state.workers)):
            yield from self.process(state, number)
        yield from self.venue.steps(state)

    # The API: commands, halts, and the platform's own CANCEL.

    def api(self, state: State) -> Iterator[Step]:
        for index, order in enumerate(state.orders):
            if self.is_locked(state, index):
                continue
            if state.read and state.read[0] == index:
                _, command, head = state.read
                written = self.accept(state, index, command, head)._replace(read=())
                yield Step(MUST, f"API: writes {name_command(state, index, command)}", written)
            if state.read or is_final(order.head):
                continue
            for command in self.asked[index]:
                is_late = state.is_halted or order.head & ASKED[CANCEL]
                if order.head & ASKED[command] or (command == REPLACE and is_late):
                    continue
                name = name_command(state, index, command)
                if self.design.api == "unlocked":
                    read = state._replace(read=(index, command, order.head))
                    yield Step(MAY, f"API: reads the order for {name}, without a lock", read)
                else:
                    accepted = self.accept(state, index, command, order.head)
                    yield Step(MAY, f"API: accepts {name}", accepted)
            is_left = self.design.unwanted == "left" or order.head & ASKED[SYSTEM]
            if is_unwanted(order.head) and not is_left:
                accepted = self.accept(state, index, SYSTEM, order.head)
                yield Step(
                    MUST, "platform: cancels an order that works though we ended it", accepted
                )
        sharing = {"before": FENCED, "late": READ}.get(self.design.halt, COMMITTED)
        is_shared = any(sharing <= turn.phase < COMMITTED for turn in state.turns)
        if self.config.has_halt and not state.is_halted and not is_shared:
            yield Step(MAY, "API: commits a halt, and answers", state._replace(is_halted=True))

    def is_locked(self, state: State, index: int) -> bool:
        """Whether a turn has the lock of the order's head."""
        if self.design.heads != "locked":
            return False
        turns = [each for each in state.turns if HEADS <= each.phase < COMMITTED]
        return any(turn.locked[index] for turn in turns)

    def accept(self, state: State, index: int, command: int, head: int) -> State:
        order = state.orders[index]
        made = Order(
            head=head | ASKED[command],
            journal=order.journal | ASKED[command],
            rows=put(order.rows, command, UNSENT),
        )
        return state._replace(orders=put(state.orders, index, made))

    # Leases. Time is the model's to choose.

    def leases(self, state: State) -> Iterator[Step]:
        holder = state.workers[state.owner]
        if not state.is_expired:
            expired = state._replace(is_expired=True)
            if holder.token != state.token or holder.is_frozen:
                yield Step(MUST, f"clock: the lease of W{state.owner + 1} expires", expired)
            elif spent := spend(expired, "slow"):
                yield Step(FAULT, f"clock: W{state.owner + 1} is slow, its lease expires", spent)
            return
        if self.is_fence_held(state):
            return
        for number, worker in enumerate(state.workers):
            if worker.phase == OUT and not worker.is_frozen:
                token = state.token + 1
                holding = worker._replace(phase=IDLE, token=token)
                taken = state._replace(
                    owner=number,
                    token=token,
                    is_expired=False,
                    workers=put(state.workers, number, holding),
                )
                yield Step(MUST, f"W{number + 1}: takes the lease (token {token})", taken)

    def is_fence_held(self, state: State) -> bool:
        """Whether a turn that passed the fence holds the lock of the lease."""
        if self.design.fence not in ("locked", "by name"):
            return False
        own = [turn for turn in state.turns if turn.token == state.token]
        return any(FENCED <= turn.phase < COMMITTED for turn in own)

    # A turn's transaction, in the server.

    def server(self, state: State, number: int) -> Iterator[Step]:
        turn = state.turns[number]
        who = f"database: the turn of W{turn.worker + 1}" + ("" if turn.is_awaited else " (cut)")

        def kept(after: State, **changes: Any) -> State:
            changed = turn._replace(**changes)
            return self.forget_ended(after._replace(turns=put(after.turns, number, changed)))

        is_cut = not turn.is_awaited and turn.phase < WRITTEN
        is_still = turn.phase == READ and state.workers[turn.worker].is_frozen
        if is_cut or is_still:
            ended = without(state.turns, number) if is_cut else None
            after = kept(state, phase=REFUSED) if ended is None else state._replace(turns=ended)
            yield Step(MUST, f"{who} stood still, and is rolled back", after)
        if turn.phase == BEGUN and not is_cut:
            is_owner = state.owner == turn.worker
            is_ours = is_owner if self.design.fence == "by name" else state.token == turn.token
            if (is_ours and not state.is_expired) or self.design.fence == "none":
                fenced = kept(state, phase=FENCED, halted=state.is_halted)
                yield Step(MUST, f"{who} passes the fence", fenced)
            else:
                yield Step(MUST, f"{who} fails at the fence", kept(state, phase=UNFENCED))
        elif turn.phase == FENCED and not is_cut:
            locked = self.lock_heads(state, turn)
            yield Step(MUST, f"{who} locks heads", kept(state, phase=HEADS, locked=locked))
        elif turn.phase == HEADS and not is_cut:
            yield self.read(state, turn, who, kept)
        elif turn.phase == WRITTEN:
            yield Step(MUST, f"{who} commits", kept(self.commit(state, turn), phase=COMMITTED))
        is_open = turn.phase < COMMITTED and not is_cut
        spent = spend(state, "refused") if turn.is_awaited else state
        if is_open and spent and (turn.is_awaited or turn.phase == WRITTEN):
            yield Step(FAULT, f"{who} is rolled back", kept(spent, phase=REFUSED))

    def lock_heads(self, state: State, turn: Turn) -> tuple[bool, ...]:
        """Of the orders with news; those that another turn holds are skipped."""
        return tuple(
            news is not None and not self.is_locked(state, index)
            for index, news in enumerate(turn.batch)
        )

    def read(self, state: State, turn: Turn, who: str, kept: Callable[..., State]) -> Step:
        """Locks candidates and their heads, and reads: of the unit nothing if one of its orders with
        news is held elsewhere."""
        candidates: list[int | None] = []
        locked = list(turn.locked)
        for index, order in enumerate(state.orders):
            is_free = locked[index] or not self.is_locked(state, index)
            candidate = self.candidate(order.rows) if is_free else None
            locked[index] = locked[index] or candidate is not None or self.has_mark(order, is_free)
            candidates.append(candidate)
        seen = tuple(
            (order.head, order.rows) if is_locked else None
            for order, is_locked in zip(state.orders, locked, strict=True)
        )
        after = kept(
            state,
            phase=READ,
            locked=tuple(locked),
            seen=seen,
            candidates=tuple(candidates),
            position=state.position,
            halted=turn.halted if self.design.halt == "late" else state.is_halted,
        )
        found = [name_command(state, o, c) for o, c in enumerate(candidates) if c is not None]
        return Step(MUST, f"{who} reads {', '.join(found) or 'no candidate'}", after)

    def has_mark(self, order: Order, is_free: bool) -> bool:
        return is_free and MARKED in order.rows

    def candidate(self, rows: Rows) -> int | None:
        """The first row that is not sent, without an earlier one; a CANCEL does not wait for what is
        unclear."""
        create, change, cancel, system = rows
        over = (GONE, UNCLEAR, ABSENT)
        if create == UNSENT:
            return CREATE
        if change == UNSENT and create == GONE:
            return REPLACE
        if create not in over or change not in over:
            return None
        if cancel == UNSENT:
            return CANCEL
        return SYSTEM if system == UNSENT and cancel == GONE else None

    def commit(self, state: State, turn: Turn) -> State:
        orders = list(state.orders)
        wrong = state.wrong
        gained = 0
        for index, write in enumerate(turn.writes):
            if write is None:
                continue
            order = orders[index]
            if turn.seen[index] is None:
                orders[index] = order._replace(rows=put(order.rows, write.rows[0], GONE))
                continue
            if write.new & order.journal:
                wrong = f"(c) recorded twice: {named(write.new & order.journal)}"
            is_submit = write.sent & (1 << CREATE | 1 << REPLACE)
            if is_submit and state.is_halted and not turn.halted:
                wrong = "(d) marked after a halt that its transaction did not see"
            gained += fills(write.new)
            orders[index] = Order(write.head, order.journal | write.new, write.rows)
        position = turn.position + gained if gained else state.position
        return state._replace(orders=tuple(orders), position=position, wrong=wrong)

    # A worker's process.

    def process(self, state: State, number: int) -> Iterator[Step]:
        worker = state.workers[number]
        who = f"W{number + 1}"

        def after(changed: Worker, of: State = state) -> State:
            return of._replace(workers=put(of.workers, number, changed))

        if worker.is_frozen:
            yield Step(MAY, f"{who}: wakes", after(worker._replace(is_frozen=False)))
            return
        if worker.phase == OUT:
            return
        if worker.token != state.token and worker.phase in (IDLE, ASKING):
            dropped = self.forget_ended(after(self.new_worker()))
            yield Step(MUST, f"{who}: its lease is over, it drops all", dropped)
        yield from self.give(state, number)
        if worker.phase == ASKING:
            yield from self.ask(state, number)
        elif worker.phase == TURN:
            yield from self.hear(state, number)
        else:
            yield from self.begin(state, number)
        if worker.phase != ASKING:
            for index in range(self.count):
                yield from self.talk(state, number, index)
        if number == 0 and (spent := spend(state, "freeze")):
            yield Step(FAULT, f"{who}: freezes", after(worker._replace(is_frozen=True), spent))
        if spent := spend(state, "crash"):
            turns = [
                each for each in state.turns if each.worker != number or each.phase < COMMITTED
            ]
            cut = [
                each._replace(is_awaited=each.is_awaited and each.worker != number)
                for each in turns
            ]
            fresh = after(self.new_worker(), spent)._replace(turns=tuple(cut))
            yield Step(FAULT, f"{who}: crashes, and starts again", fresh)

    def give(self, state: State, number: int) -> Iterator[Step]:
        """Gives the lease back. That changes the lease, not the worker's row, which its own turns
        lock."""
        worker = state.workers[number]
        waits = any(worker.todo) or any(worker.calls) or any(n != NO_NEWS for n in worker.news)
        is_idle = worker.phase == IDLE and not waits
        spent = spend(state, "give")
        is_ours = worker.token == state.token and not state.is_expired
        if spent and is_ours and (is_idle or self.design.give == "any time"):
            turns = [turn._replace(is_awaited=False) for turn in spent.turns]
            given = spent._replace(
                token=state.token + 1,
                is_expired=True,
                workers=put(spent.workers, number, self.new_worker()),
                turns=tuple(turns),
            )
            label = f"W{number + 1}: gives its lease back"
            yield Step(FAULT, label, self.forget_ended(given))

    def begin(self, state: State, number: int) -> Iterator[Step]:
        """Sends the first trip, if there may be something to do."""
        worker = state.workers[number]
        batch = tuple(news if news != NO_NEWS else None for news in worker.news)
        has_work = False
        for index, order in enumerate(state.orders):
            if self.is_locked(state, index):
                continue  # waited for
            in_flight = worker.todo[index] | worker.calls[index]
            marks = [c for c in COMMANDS if order.rows[c] == MARKED and not in_flight >> c & 1]
            candidate = self.candidate(order.rows)
            is_own = candidate is not None and in_flight >> candidate & 1  # marked after its call
            has_candidate = candidate is not None and not is_own
            has_marks = bool(marks) and self.design.marked != "left"
            has_work = has_work or has_candidate or has_marks or batch[index] is not None
        if has_work:
            sent = worker._replace(phase=TURN, news=(NO_NEWS,) * self.count)
            turn = Turn(number, worker.token, batch)
            begun = state._replace(
                workers=put(state.workers, number, sent), turns=(*state.turns, turn)
            )
            yield Step(MUST, f"W{number + 1}: begins a turn", begun)

    def hear(self, state: State, number: int) -> Iterator[Step]:
        """The server's answers to a turn, or none."""
        worker = state.workers[number]
        who = f"W{number + 1}"
        index, turn = next(
            (n, t) for n, t in enumerate(state.turns) if t.worker == number and t.is_awaited
        )

        def after(changed: Worker, turns: tuple[Turn, ...], of: State = state) -> State:
            return of._replace(workers=put(of.workers, number, changed), turns=turns)

        over = without(state.turns, index)
        if turn.phase == UNFENCED:
            yield Step(MUST, f"{who}: hears that its lease is over", after(self.new_worker(), over))
        elif turn.phase == REFUSED:
            back = self.put_back(worker, turn)
            yield Step(MUST, f"{who}: hears of the error", after(back, over))
        elif turn.phase == READ:
            changed, writes = self.settle_all(worker, turn)
            written = turn._replace(phase=WRITTEN, writes=writes)
            if self.design.mark == "uncommitted":
                changed = self.applied(changed, written)._replace(phase=TURN)
            sent = after(changed, put(state.turns, index, written))
            yield Step(MUST, f"{who}: decides, and sends its writes", sent)
        elif turn.phase == COMMITTED:
            yield Step(MUST, f"{who}: hears of the commit", after(self.applied(worker, turn), over))
        if spent := spend(state, "unknown"):
            cut = put(state.turns, index, turn._replace(is_awaited=False))
            if turn.phase < WRITTEN or self.design.unknown == "at once":
                lost = after(self.put_back(worker, turn), cut, spent)
            elif self.design.unknown == "as applied":
                lost = after(self.applied(worker, turn), cut, spent)
            else:
                lost = after(worker._replace(phase=ASKING), cut, spent)
            yield Step(FAULT, f"{who}: loses its connection", self.forget_ended(lost))

    def forget_ended(self, state: State) -> State:
        """Of turns that are over and that nobody asks about, nothing is left."""
        kept = []
        for turn in state.turns:
            worker = state.workers[turn.worker]
            is_asked = worker.phase == ASKING and worker.token == turn.token
            if turn.is_awaited or turn.phase < COMMITTED or is_asked:
                kept.append(turn)
        return state._replace(turns=tuple(kept))

    def ask(self, state: State, number: int) -> Iterator[Step]:
        """Learns how the turn ended whose commit was not answered, by its xid; until it has ended, that is
        not known."""
        worker = state.workers[number]
        for index, turn in enumerate(state.turns):
            is_own = turn.worker == number and turn.token == worker.token
            if is_own and not turn.is_awaited and turn.phase >= COMMITTED:
                is_committed = turn.phase == COMMITTED
                known = self.applied(worker, turn) if is_committed else self.put_back(worker, turn)
                after = state._replace(
                    workers=put(state.workers, number, known), turns=without(state.turns, index)
                )
                ended = "committed" if is_committed else "rolled back"
                yield Step(MUST, f"W{number + 1}: learns that its turn was {ended}", after)

    def put_back(self, worker: Worker, turn: Turn) -> Worker:
        news = [
            merge(old, new) if old else new
            for old, new in zip(turn.batch, worker.news, strict=True)
        ]
        return worker._replace(phase=IDLE, news=tuple(news))

    def applied(self, worker: Worker, turn: Turn) -> Worker:
        """The turn is committed: what it marked is to be sent. Otherwise the rows say all."""
        sent = [write.sent if write else 0 for write in turn.writes]
        todo = [old | new for old, new in zip(worker.todo, sent, strict=True)]
        return worker._replace(phase=IDLE, todo=tuple(todo))

    def settle_all(self, worker: Worker, turn: Turn) -> tuple[Worker, tuple[Write | None, ...]]:
        """Settles news and decides candidates, by what the turn has locked and read."""
        writes: list[Write | None] = []
        back = list(worker.news)
        for index, news in enumerate(turn.batch):
            seen = turn.seen[index]
            if seen is None:
                writes.append(self.delete_row(turn, index))
                if news and self.design.held != "dropped":
                    back[index] = merge(news, back[index])
                continue
            doubted = self.doubted(worker, turn, index)
            known = merge(doubted, news) if news else doubted
            writes.append(self.settling.decide(turn, index, known))
        return worker._replace(news=tuple(back)), tuple(writes)

    def doubted(self, worker: Worker, turn: Turn, index: int) -> News:
        """Marked rows that this process neither has in flight nor waits to record."""
        seen = turn.seen[index]
        assert seen
        news = turn.batch[index] or NO_NEWS
        in_flight = 0 if self.design.marked == "all" else worker.todo[index] | worker.calls[index]
        found = NO_NEWS
        for command, row in enumerate(seen[1]):
            waits = news[1][command] or worker.news[index][1][command]
            if row != MARKED or in_flight >> command & 1 or waits:
                continue
            is_cancel = command in (CANCEL, SYSTEM)
            op = AGAIN if is_cancel or self.design.marked == "sent again" else DOUBT
            if self.design.marked != "left":
                found = merge(found, op_news(command, op))
        return found

    def delete_row(self, turn: Turn, index: int) -> Write | None:
        """Of an order that could not be locked."""
        ops = (turn.batch[index] or NO_NEWS)[1]
        if self.design.held == "deleted" and DONE in ops:
            return Write(0, 0, (ops.index(DONE),), 0)
        return None

    # With the broker, of an order: calls, time-outs, look-ups, events.

    def talk(self, state: State, number: int, index: int) -> Iterator[Step]:
        worker = state.workers[number]
        who = f"W{number + 1}"

        def after(of: State = state, **changes: Any) -> State:
            return of._replace(workers=put(of.workers, number, worker._replace(**changes)))

        def heard(news: News) -> tuple[News, ...]:
            return put(worker.news, index, merge(worker.news[index], news))

        is_ours = worker.token == state.token and not state.is_expired
        for command in COMMANDS:
            bit = 1 << command
            name = name_command(state, index, command)
            if worker.todo[index] & bit and (is_ours or not self.design.is_clock_asked):
                message = (number, worker.token, index, command)
                wired = state._replace(wire=tuple(sorted((*state.wire, message))))
                todo = put(worker.todo, index, worker.todo[index] ^ bit)
                calls = put(worker.calls, index, worker.calls[index] | bit)
                called = after(wired, todo=todo, calls=calls)
                yield Step(MUST, f"{who}: writes {name} to the broker", called)
            if worker.calls[index] & bit:
                travels = (number, worker.token, index, command) in state.wire
                spent = spend(state, "no answer") if travels else state
                if spent:
                    op = DOUBT if command in (CREATE, REPLACE) else AGAIN
                    calls = put(worker.calls, index, worker.calls[index] ^ bit)
                    late = after(spent, calls=calls, news=heard(op_news(command, op)))
                    kind = FAULT if travels else MUST
                    yield Step(kind, f"{who}: has no answer to {name} in time", late)
        if worker.token != state.token:
            return  # what it hears goes into a turn that fails at the fence
        for label, news in self.reports(state, number, index):
            yield Step(MUST, f"{who}: {label}", after(news=heard(news)))

    def reports(self, state: State, number: int, index: int) -> Iterator[tuple[str, News]]:
        """The broker's answers to look-ups that are due, and its events, in any order."""
        worker = state.workers[number]
        order = state.orders[index]
        real = state.broker[index]
        facts, ops = worker.news[index]
        turn = next((t for t in state.turns if t.worker == number and t.batch[index]), None)
        due = [c for c in (CREATE, REPLACE) if order.rows[c] in (UNCLEAR, ABSENT)]
        is_next = turn is None or self.design.lookup == "any time"
        if due and not ops[due[0]] and not facts and is_next:
            command = due[0]
            is_there = real & (ACCEPTED if command == CREATE else REPLACED)
            found = real & ~order.head
            is_early = self.config.is_bounded and self.design.proof == 2
            is_early = is_early and order.rows[command] == ABSENT
            travels = any(sent[2:] == (index, command) for sent in state.wire)
            name = name_command(state, index, command)
            if is_there and found:
                yield f"looks up {name}, and finds {named(found)}", (found, NO_NEWS[1])
            elif not is_there and not (is_early and travels):
                missing = op_news(command, MISSING, found)
                yield f"looks up {name}, and does not find it", missing
        known = facts | order.head
        if turn:
            known |= (turn.batch[index] or NO_NEWS)[0]
        for event in (ACCEPTED, PART, FILLED, CANCELLED, REPLACED):
            if real & event & ~known:
                yield f"the broker reports {named(event)}", (event, NO_NEWS[1])
