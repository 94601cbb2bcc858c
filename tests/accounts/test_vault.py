"""The embedded vault: what it seals opens for its own row only, and nothing shows a secret."""

import asyncio
import base64
import io
import json
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.accounts.vaults import (
    MARKER,
    ONE,
    ROW,
    SECRETS,
    answered,
    environment_vault,
    make_vault,
    unreadable,
)
from tests.fakes import ManualClock
from trading_intents.accounts.vault import KEY_FILE, EmbeddedVault, SecretRef, embedded_vault
from trading_intents.accounts.vault.envelope import FIELDS_AT, HEADER, _wrap
from trading_intents.config import Settings
from trading_intents.errors import SecretUnreadable, Unavailable, ValidationFailed
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log


@pytest.fixture
def vault(tmp_path: Path) -> EmbeddedVault:
    return make_vault(tmp_path)


# Sealing


async def test_what_was_sealed_opens_again(vault: EmbeddedVault) -> None:
    assert await vault.open(ROW, await vault.seal(ROW, SECRETS)) == SECRETS


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_any_text_comes_back_as_it_was(fields: dict[str, str]) -> None:
    async def there_and_back() -> None:
        vault = environment_vault(f"1:{ONE}")
        secrets = {name: Secret(text) for name, text in fields.items()}
        assert await vault.open(ROW, await vault.seal(ROW, secrets)) == secrets

    asyncio.run(there_and_back())


async def test_equal_secrets_look_different_once_sealed(vault: EmbeddedVault) -> None:
    one, other = [await vault.seal(ROW, SECRETS) for _ in range(2)]
    assert one[HEADER.size : FIELDS_AT] != other[HEADER.size : FIELDS_AT]
    assert one[FIELDS_AT:] != other[FIELDS_AT:]
    assert MARKER.encode() not in one


@pytest.mark.parametrize("part", ["organization_id", "account_id", "credential_id"])
async def test_on_another_row_it_does_not_open(vault: EmbeddedVault, part: str) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    await unreadable(vault, structs.replace(ROW, **{part: uuid4()}), sealed)


async def test_ids_that_are_swapped_do_not_open(vault: EmbeddedVault) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    await unreadable(
        vault, SecretRef(ROW.account_id, ROW.organization_id, ROW.credential_id), sealed
    )


async def test_every_flipped_bit_is_noticed(vault: EmbeddedVault) -> None:
    await vault.add_master_key()
    sealed = await vault.seal(ROW, SECRETS)
    for bit in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        await unreadable(vault, ROW, bytes(flipped))


async def test_every_other_length_is_noticed(vault: EmbeddedVault) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    for length in range(len(sealed)):
        await unreadable(vault, ROW, sealed[:length])
    await unreadable(vault, ROW, sealed + b"\0")
    await unreadable(vault, ROW, sealed + bytes(1_000_000))


async def test_halves_of_two_sealed_values_do_not_fit(vault: EmbeddedVault) -> None:
    one, other = [await vault.seal(ROW, SECRETS) for _ in range(2)]
    await unreadable(vault, ROW, one[:FIELDS_AT] + other[FIELDS_AT:])


async def test_even_with_its_data_key_the_payload_stays_with_its_row(vault: EmbeddedVault) -> None:
    other = structs.replace(ROW, account_id=uuid4())
    sealed = await vault.seal(ROW, SECRETS)
    moved_key = _wrap(vault._keys.newest(), other, vault._unwrap(ROW, sealed))
    await unreadable(vault, other, moved_key + sealed[FIELDS_AT:])


async def test_the_key_version_is_part_of_what_is_sealed() -> None:
    vault = environment_vault(f"1:{ONE},2:{ONE}")
    sealed = await vault.seal(ROW, SECRETS)
    assert vault.key_version(sealed) == 2
    await unreadable(vault, ROW, HEADER.pack(sealed[0], 1) + sealed[HEADER.size :])


async def test_another_folders_key_does_not_open_it(vault: EmbeddedVault, tmp_path: Path) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    await unreadable(make_vault(tmp_path / "other"), ROW, sealed)


@pytest.mark.parametrize(
    "text", ["\ud800" + MARKER, MARKER * 20_000], ids=["no unicode", "too large"]
)
async def test_what_no_request_can_hold_is_refused_unseen(vault: EmbeddedVault, text: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        await vault.seal(ROW, {"key": Secret(text)})
    assert caught.value.__context__ is None
    assert MARKER not in answered(caught.value)


async def test_forgetting_may_be_repeated(vault: EmbeddedVault) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    for _ in range(2):
        await vault.forget(ROW, sealed)


# Nothing shows a secret


async def test_no_error_repr_or_log_line_shows_a_secret_or_key(tmp_path: Path) -> None:
    logged = io.StringIO()
    vault = embedded_vault(
        Settings(data_dir=tmp_path), ManualClock(), make_log("debug", logged), may_create=True
    )
    (key,) = json.loads((tmp_path / KEY_FILE).read_text())["keys"]
    sealed = await vault.seal(ROW, SECRETS)
    shown = [
        repr(vault),
        repr(await vault.open(ROW, sealed)),
        repr(vars(vault)),
        repr(vars(vault._keys)),
    ]
    for broken in (sealed[:-1], b"", b"\x01" + bytes(200), b"\x02" + sealed[1:]):
        with pytest.raises(SecretUnreadable) as caught:
            await vault.open(ROW, broken)
        shown += [answered(caught.value), caught.value.reason]
    (tmp_path / KEY_FILE).write_text("")
    with pytest.raises(Unavailable) as away:
        await vault.seal(ROW, SECRETS)
    text = " ".join([*shown, answered(away.value), logged.getvalue()])
    assert "vault keys unreadable" in text
    for value in (MARKER, key["key"], repr(base64.b64decode(key["key"]))):
        assert value not in text
