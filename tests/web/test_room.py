"""A connection that makes room for a new one, chosen by the rule from plain lists too."""

import random

import pytest

from trading_intents.web.server.room import Room


class PlainRoom:
    """(connection, holder) in the order of arrival, and quiet connections, the longest first."""

    def __init__(self) -> None:
        self.held: list[tuple[int, str]] = []
        self.quiet: list[int] = []

    def set_quiet(self, connection: int, is_quiet: bool) -> None:
        if not is_quiet:
            self.quiet.remove(connection)
        elif connection not in self.quiet:
            self.quiet.append(connection)

    def remove(self, connection: int) -> None:
        self.held = [each for each in self.held if each[0] != connection]
        self.quiet = [each for each in self.quiet if each != connection]

    def count(self, holder: str) -> int:
        return sum(1 for _, its in self.held if its == holder)

    def holder(self, connection: int) -> str:
        return dict(self.held)[connection]

    def quiet_of(self, holder: str) -> list[int]:
        return [each for each in self.quiet if self.holder(each) == holder]


HOLDERS = "abcde"


@pytest.mark.parametrize("seed", range(30))
def test_who_holds_most_makes_room_for_a_newcomer(seed: int) -> None:
    chance = random.Random(seed)
    room = Room[int](limit=12)
    plain = PlainRoom()
    for connection in range(300):
        holder = chance.choices(HOLDERS, weights=(8, 4, 2, 1, 1))[0]
        if room.is_full:
            quiet = room.choose_quiet(holder)
            busy = room.choose_busy(holder)
            check_quiet(plain, holder, quiet)
            check_busy(plain, holder, busy)
            ended = busy if quiet is None else quiet
            if ended is None:
                continue
            assert room.remove(ended)
            plain.remove(ended)
        room.add(connection, holder)
        plain.held.append((connection, holder))
        plain.set_quiet(connection, True)
        for _ in range(3):
            change_one(chance, room, plain)
    assert len(room.holders) == len(plain.held)
    for connection, _ in list(plain.held):
        assert room.remove(connection)
    assert not room.remove(0)
    assert (room.holders, room.counts, room._quiet) == ({}, {}, {})


def test_while_everybody_holds_one_the_longest_quiet_makes_room() -> None:
    room = Room[int](limit=4)
    for connection in range(4):
        room.add(connection, HOLDERS[connection])
    room.set_quiet(0, is_quiet=False)
    assert room.choose_quiet("e") == 1
    room.set_quiet(0, is_quiet=True)
    for connection in (1, 2, 3, 0):
        assert room.choose_quiet("e") == connection
        assert room.choose_quiet(HOLDERS[connection]) == connection
        room.set_quiet(connection, is_quiet=False)
    assert room.choose_quiet("e") is None
    assert room.choose_busy("e") is None


def check_quiet(plain: PlainRoom, holder: str, ended: int | None) -> None:
    own = plain.count(holder)
    most = max((plain.count(plain.holder(each)) for each in plain.quiet), default=0)
    if ended is None:
        assert most <= own
        assert plain.quiet_of(holder) == []
        return
    giver = plain.holder(ended)
    assert ended == plain.quiet_of(giver)[0], "the longest of its holder's"
    if own >= most:
        assert giver == holder
    else:
        assert plain.count(giver) == most


def check_busy(plain: PlainRoom, holder: str, ended: int | None) -> None:
    most = max(plain.count(each) for each in HOLDERS)
    if plain.count(holder) or most == 1:
        assert ended is None
        return
    assert ended is not None
    giver = plain.holder(ended)
    assert plain.count(giver) == most
    assert ended == next(each for each, its in plain.held if its == giver), "its oldest"


def change_one(chance: random.Random, room: Room[int], plain: PlainRoom) -> None:
    connection, _ = chance.choice(plain.held)
    is_quiet = chance.random() < 0.4
    if is_quiet or connection in plain.quiet:
        room.set_quiet(connection, is_quiet)
        plain.set_quiet(connection, is_quiet)
