"""API keys: what is one, what is not, and that checking one is quick."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.texts import ANY_TEXT
from trading_intents.identity.keys import (
    ALPHABET,
    CHECKSUM_LENGTH,
    digest,
    hint,
    is_key,
    make_client_secret,
    make_key,
    same_digest,
)
from trading_intents.secret import Secret
from trading_intents.trading import Environment

ENVIRONMENTS = list(Environment)
PAPER_KEY = "tip_paper_0123456789ABCDEFGHIJKLMNOPQRSTUV2cbmyG"
OTHER_CHARACTERS = ALPHABET + " _-.\x00\u0660\u00e9\U0001f511"


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_made_key_is_one_with_a_hint_of_its_end(environment: Environment) -> None:
    text = make_key(environment).reveal()
    assert is_key(text)
    assert hint(text) == text[-4:]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_key_has_the_published_shape(environment: Environment) -> None:
    assert re.fullmatch(
        rf"tip_{environment}_[0-9A-Za-z]{{32}}[0-9A-Za-z]{{6}}", make_key(environment).reveal()
    )


def test_the_checksum_never_changes_for_keys_already_given_out() -> None:
    assert is_key(PAPER_KEY)


def test_a_made_key_is_not_shown_by_accident() -> None:
    key = make_key(Environment.LIVE)
    assert isinstance(key, Secret)
    assert "tip_" not in f"{key} {key!r}"


def test_two_keys_are_never_equal() -> None:
    assert len({make_key(Environment.PAPER).reveal() for _ in range(2_000)}) == 2_000


def test_a_changed_character_is_noticed_at_every_position() -> None:
    for position in range(len(PAPER_KEY)):
        for character in OTHER_CHARACTERS:
            changed = PAPER_KEY[:position] + character + PAPER_KEY[position + 1 :]
            assert is_key(changed) == (changed == PAPER_KEY), changed


def test_a_truncated_key_is_noticed_at_every_length() -> None:
    assert not any(is_key(PAPER_KEY[:length]) for length in range(len(PAPER_KEY)))
    assert not any(is_key(PAPER_KEY[length:]) for length in range(1, len(PAPER_KEY)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        PAPER_KEY + " ",
        " " + PAPER_KEY,
        PAPER_KEY + "\n",
        PAPER_KEY + "\x00",
        "\x00" + PAPER_KEY,
        PAPER_KEY + PAPER_KEY,
        PAPER_KEY.lower(),
        PAPER_KEY.upper(),
        PAPER_KEY.swapcase(),
        PAPER_KEY.replace("paper", "live"),
        PAPER_KEY.replace("paper", "test"),
        PAPER_KEY.replace("0", "\u0660"),
        PAPER_KEY.replace("0", "\uff10"),
        PAPER_KEY.replace("K", "\u212a"),
        "\ud800" * len(PAPER_KEY),
        PAPER_KEY[:10] + "\U0001d7ce" * 38,
    ],
    ids=ascii,
)
def test_another_spelling_is_no_key(text: str) -> None:
    assert not is_key(text)


@pytest.mark.parametrize(
    "text",
    [
        "tip_paper_0123456789ABCDEFGHIJKLMNOPQRSTU1iFRTI",
        "tip_paper_0123456789ABCDEFGHIJKLMNOPQRSTUVW1PKD5F",
    ],
)
def test_a_right_checksum_does_not_excuse_a_wrong_length(text: str) -> None:
    assert not is_key(text)


@pytest.mark.timeout(2)
@pytest.mark.parametrize(
    "filler", ["a", "tip_", "tip_paper_", "\u0660", "\x00", "\ud800"], ids=ascii
)
def test_a_megabyte_is_refused_a_thousand_times_a_second(filler: str) -> None:
    text = "tip_paper_" + filler * (1_000_000 // len(filler))
    assert not any(is_key(text) for _ in range(1_000))


@given(ANY_TEXT)
def test_no_text_breaks_parsing_or_digesting(text: str) -> None:
    assert not is_key(text)
    assert len(digest(text)) == 32


@given(st.text(alphabet=ALPHABET, min_size=38, max_size=38), st.sampled_from(ENVIRONMENTS))
def test_a_guess_in_the_right_shape_has_the_wrong_checksum(
    body: str, environment: Environment
) -> None:
    assert not is_key(f"tip_{environment}_{body}")


@given(st.text(alphabet=ALPHABET, min_size=1), st.text(alphabet=ALPHABET, min_size=1))
def test_digests_agree_exactly_when_texts_do(one: str, other: str) -> None:
    assert same_digest(digest(one), digest(other)) == (one == other)


def test_a_client_secret_is_no_api_key_and_never_repeats() -> None:
    secrets = {make_client_secret().reveal() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"tis_[0-9A-Za-z]{38}", secret) for secret in secrets)
    assert not any(is_key(secret) for secret in secrets)


def test_the_checksum_uses_the_whole_alphabet_and_nothing_else() -> None:
    seen = {
        c for _ in range(1_000) for c in make_key(Environment.PAPER).reveal()[-CHECKSUM_LENGTH:]
    }
    assert seen == set(ALPHABET)
