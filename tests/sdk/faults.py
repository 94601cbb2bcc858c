"""A network between a client and the platform that fails requests by chance."""

import random

from tests.proxy import Verdict

FAULT_SHARE = 0.08
BUSY = b'{"code": "rate_limited", "status": 429, "title": "t", "detail": "injected"}'
AWAY = b'{"code": "unavailable", "status": 503, "title": "t", "detail": "injected"}'
UNKNOWN = b'{"code": "outcome_unknown", "status": 503, "title": "t", "detail": "injected"}'


def answer(status: bytes, body: bytes) -> bytes:
    head = (
        b"HTTP/1.1 %s\r\ncontent-type: application/problem+json\r\n"
        b"retry-after: 0\r\ncontent-length: %d\r\n\r\n"
    )
    return head % (status, len(body)) + body


FAULTS: list[Verdict | bytes] = [
    Verdict.CUT_UNSENT,
    Verdict.CUT_SENT,
    Verdict.CUT_UNANSWERED,
    Verdict.CUT_UNANSWERED,
    answer(b"429 Too Many Requests", BUSY),
    answer(b"503 Service Unavailable", AWAY),
    answer(b"503 Service Unavailable", UNKNOWN),
]


class FaultyNetwork:
    """A network that fails requests by chance."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.faults = 0

    def __call__(self, data: bytes) -> Verdict | bytes:
        if self._chance.random() >= FAULT_SHARE:
            return Verdict.PASS
        self.faults += 1
        return self._chance.choice(FAULTS)
