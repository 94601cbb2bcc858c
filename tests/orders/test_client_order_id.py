"""Client order ids are in brokers' books and in the database: the same action keeps its id for
ever."""

import base64
import hashlib
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from trading_intents.orders.facts import client_order_id


def test_known_ids_stay() -> None:
    action = UUID("0192f7a0-0000-7000-8000-000000000001")
    assert client_order_id(action) == "WY6P6KSHY662MKRR4W"
    assert client_order_id(action, 1) == "6ZQGH57CZJK4CWZO4E"


@given(st.uuids(), st.integers(0, 20))
def test_an_id_is_the_digests_first_18_characters_in_base_32(action: UUID, attempt: int) -> None:
    name = action.bytes + (attempt.to_bytes(4, "big") if attempt else b"")
    digest = hashlib.blake2b(name, digest_size=20).digest()
    assert client_order_id(action, attempt) == base64.b32encode(digest).decode()[:18]
