"""The embedded vault's master keys: a file that processes share, rotation while they work, keys in
the environment."""

import asyncio
import base64
import fcntl
import json
import multiprocessing
import os
import stat
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from uuid import uuid4

import pytest
from msgspec import structs

from tests.accounts.vaults import (
    MARKER,
    ONE,
    ROW,
    SECRETS,
    TWO,
    answered,
    environment_vault,
    make_vault,
    unreadable,
)
from tests.fakes import ManualClock
from trading_intents.accounts.vault import (
    KEY_FILE,
    EmbeddedVault,
    SecretRef,
    embedded_vault,
    master_keys,
    open_vault,
)
from trading_intents.accounts.vault.envelope import FIELDS_AT
from trading_intents.accounts.vault.master_keys import MAX_KEYS, RETIRE_AFTER_SECONDS
from trading_intents.clock import SystemClock
from trading_intents.config import Settings
from trading_intents.errors import LimitReached, SecretUnreadable, StartupRefused, Unavailable
from trading_intents.secret import Secret
from trading_intents.telemetry import make_log


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vault(tmp_path: Path, clock: ManualClock) -> EmbeddedVault:
    return make_vault(tmp_path, clock)


# The key file


async def test_the_keys_are_made_once_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    sealed = await make_vault(folder).seal(ROW, SECRETS)
    assert await make_vault(folder).open(ROW, sealed) == SECRETS
    assert os.listdir(folder) == [KEY_FILE]


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    starters = 16
    start = Barrier(starters)

    def make(_: int) -> bytes:
        start.wait()
        return asyncio.run(make_vault(tmp_path).seal(ROW, SECRETS))

    with ThreadPoolExecutor(starters) as pool:
        sealed = list(pool.map(make, range(starters)))
    vault = make_vault(tmp_path)
    assert [asyncio.run(vault.open(ROW, value)) for value in sealed] == [SECRETS] * starters
    assert os.listdir(tmp_path) == [KEY_FILE]


async def test_only_the_owner_may_read_the_keys(vault: EmbeddedVault, tmp_path: Path) -> None:
    for _ in range(2):
        assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
        await vault.add_master_key()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_keys_that_others_can_reach_are_refused(tmp_path: Path, mode: int) -> None:
    make_vault(tmp_path)
    (tmp_path / KEY_FILE).chmod(mode)
    with pytest.raises(StartupRefused, match="chmod 600"):
        make_vault(tmp_path)


def key_file(*keys: tuple[object, object]) -> str:
    return json.dumps(
        {"keys": [{"version": version, "key": key, "made_at": 1} for version, key in keys]}
    )


BAD_FILES = {
    "empty": "",
    "nonsense": MARKER,
    "no keys": key_file(),
    "no base64": key_file((1, MARKER)),
    "short": key_file((1, base64.b64encode(MARKER.encode()).decode())),
    "twice": key_file((1, ONE), (1, TWO)),
    "version 0": key_file((0, ONE)),
    "version too large": key_file((2**32, ONE)),
    "version no number": key_file(("1", ONE)),
    "too large": key_file((1, ONE)) + " " * 70_000 + MARKER,
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_holds_no_keys_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / KEY_FILE
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(StartupRefused, match=KEY_FILE) as caught:
        make_vault(tmp_path)
    assert path.read_text() == content
    for value in (MARKER, ONE, base64.b64encode(MARKER.encode()).decode()):
        assert value not in answered(caught.value)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupRefused):
        make_vault(tmp_path / "file")


async def test_the_setting_names_another_file(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "keys"
    settings = Settings(data_dir=tmp_path, vault_key_file=str(path))
    embedded_vault(settings, ManualClock(), make_log(), may_create=True)
    assert path.exists()


async def test_without_its_file_a_running_process_opens_but_seals_nothing(
    vault: EmbeddedVault, tmp_path: Path
) -> None:
    sealed = await vault.seal(ROW, SECRETS)
    (tmp_path / KEY_FILE).unlink()
    assert await vault.open(ROW, sealed) == SECRETS
    with pytest.raises(Unavailable) as caught:
        await vault.seal(ROW, SECRETS)
    assert str(tmp_path) not in caught.value.detail


# Rotation


async def test_a_new_key_seals_from_then_on_in_every_process(
    vault: EmbeddedVault, tmp_path: Path
) -> None:
    neighbour = make_vault(tmp_path)
    assert await vault.add_master_key() == 2
    assert vault.key_versions() == neighbour.key_versions() == (1, 2)
    sealed = await neighbour.seal(ROW, SECRETS)
    assert vault.key_version(sealed) == 2


async def test_a_process_that_meets_a_new_key_reads_the_file_again(
    vault: EmbeddedVault, tmp_path: Path
) -> None:
    neighbour = make_vault(tmp_path)
    for _ in range(3):
        await vault.add_master_key()
        assert await neighbour.open(ROW, await vault.seal(ROW, SECRETS)) == SECRETS


async def test_rewrapping_keeps_the_payload(vault: EmbeddedVault) -> None:
    old = await vault.seal(ROW, SECRETS)
    assert await vault.rewrap(ROW, old) is old
    await vault.add_master_key()
    new = await vault.rewrap(ROW, old)
    assert (vault.key_version(old), vault.key_version(new)) == (1, 2)
    assert new[FIELDS_AT:] == old[FIELDS_AT:]
    assert await vault.rewrap(ROW, new) is new
    assert await vault.open(ROW, old) == await vault.open(ROW, new) == SECRETS


async def test_rewrapping_moves_nothing_to_another_row(vault: EmbeddedVault) -> None:
    old = await vault.seal(ROW, SECRETS)
    await vault.add_master_key()
    with pytest.raises(SecretUnreadable):
        await vault.rewrap(structs.replace(ROW, account_id=uuid4()), old)
    await unreadable(vault, structs.replace(ROW, account_id=uuid4()), await vault.rewrap(ROW, old))


async def test_a_retired_key_opens_nothing(
    vault: EmbeddedVault, clock: ManualClock, tmp_path: Path
) -> None:
    old = await vault.seal(ROW, SECRETS)
    await vault.add_master_key()
    new = await vault.rewrap(ROW, old)
    clock.advance(RETIRE_AFTER_SECONDS)
    assert await vault.retire(1)
    assert await vault.retire(1)
    fresh = make_vault(tmp_path)
    assert fresh.key_versions() == (2,)
    assert await fresh.open(ROW, new) == SECRETS
    await unreadable(fresh, ROW, old)
    assert await vault.add_master_key() == 3


async def test_a_key_that_sealed_a_moment_ago_stays(
    vault: EmbeddedVault, clock: ManualClock
) -> None:
    assert not await vault.retire(1)
    clock.advance(RETIRE_AFTER_SECONDS)
    assert not await vault.retire(1)
    await vault.add_master_key()
    clock.advance(RETIRE_AFTER_SECONDS - 1)
    assert not await vault.retire(1)
    assert vault.key_versions() == (1, 2)


async def test_there_is_a_limit_to_the_keys(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    path.touch(0o600)
    path.write_text(key_file(*((version, ONE) for version in range(1, MAX_KEYS + 1))))
    with pytest.raises(LimitReached):
        await make_vault(tmp_path).add_master_key()


async def test_a_symlink_to_the_file_stays_a_symlink(tmp_path: Path) -> None:
    make_vault(tmp_path / "real")
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "real" / KEY_FILE)
    await make_vault(tmp_path).add_master_key()
    assert (tmp_path / KEY_FILE).is_symlink()
    assert make_vault(tmp_path / "real").key_versions() == (1, 2)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can rotate for another user: sudo -E make test"
)
async def test_the_file_stays_its_owners(vault: EmbeddedVault, tmp_path: Path) -> None:
    os.chown(tmp_path / KEY_FILE, 12345, 12345)
    await vault.add_master_key()
    assert (tmp_path / KEY_FILE).stat().st_uid == 12345


def test_rotations_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    rotations = 5
    threads = 4
    start = Barrier(threads)

    def rotate(_: int) -> None:
        vault = make_vault(tmp_path)
        start.wait()
        for _ in range(rotations):
            asyncio.run(vault.add_master_key())

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(rotate, range(threads)))
    assert make_vault(tmp_path).key_versions() == tuple(range(1, rotations * threads + 2))
    assert os.listdir(tmp_path) == [KEY_FILE]


async def test_a_rotation_that_hangs_stops_no_other_for_ever(
    vault: EmbeddedVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_keys, "LOCK_TRIES", 3)
    hanging = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        with pytest.raises(StartupRefused, match="too long"):
            await vault.add_master_key()
        assert await vault.open(ROW, await vault.seal(ROW, SECRETS)) == SECRETS
    finally:
        os.close(hanging)
    assert await vault.add_master_key() == 2


# Several processes: each one starts its own vault at the same moment.

PROCESSES = 2
ROTATIONS = 20


def seal_until(folder: Path, start: Barrier, stop: Event) -> list[tuple[SecretRef, bytes]]:
    """Seal and open until `stop` is set, and once more then."""

    async def work() -> list[tuple[SecretRef, bytes]]:
        kept = []
        start.wait()
        vault = embedded_vault(
            Settings(data_dir=folder), SystemClock(), make_log(), may_create=True
        )
        start.wait()
        last = False
        while not last:
            last = stop.is_set()
            ref = SecretRef(uuid4(), uuid4(), uuid4())
            kept.append((ref, await vault.seal(ref, SECRETS)))
            assert await vault.open(*kept[len(kept) // 2]) == SECRETS
        return kept

    return asyncio.run(work())


@pytest.mark.slow
async def test_processes_seal_and_open_while_another_rotates(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as shared, ProcessPoolExecutor(PROCESSES, context) as pool:
        start = shared.Barrier(PROCESSES + 1)
        stop = shared.Event()
        work = [pool.submit(seal_until, tmp_path, start, stop) for _ in range(PROCESSES)]
        await asyncio.to_thread(start.wait)
        await asyncio.to_thread(start.wait)
        rotating = make_vault(tmp_path)
        for _ in range(ROTATIONS):
            await rotating.add_master_key()
        stop.set()
        sealed = [pair for done in work for pair in await asyncio.wrap_future(done)]
    vault = make_vault(tmp_path)
    assert vault.key_versions() == tuple(range(1, ROTATIONS + 2))
    assert max(vault.key_version(value) for _, value in sealed) == ROTATIONS + 1
    for ref, value in sealed:
        assert await vault.open(ref, value) == SECRETS
        assert vault.key_version(await vault.rewrap(ref, value)) == ROTATIONS + 1


# Keys in the environment


async def test_keys_in_the_environment_need_no_file(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, vault_master_keys=Secret(f"1:{ONE}, 2:{TWO}"))
    async with open_vault(settings, ManualClock(), make_log()) as vault:
        sealed = await vault.seal(ROW, SECRETS)
    assert await environment_vault(f"2:{TWO}").open(ROW, sealed) == SECRETS
    await unreadable(environment_vault(f"1:{ONE}"), ROW, sealed)
    assert os.listdir(tmp_path) == []


async def test_keys_in_the_environment_are_rotated_there() -> None:
    old = environment_vault(f"1:{ONE}")
    new = environment_vault(f"2:{TWO},1:{ONE}")
    with pytest.raises(StartupRefused, match="VAULT_MASTER_KEYS"):
        await old.add_master_key()
    assert not await new.retire(1)
    assert new.key_versions() == (1, 2)
    assert new.key_version(await new.rewrap(ROW, await old.seal(ROW, SECRETS))) == 2


SHORT = base64.b64encode(MARKER.encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        MARKER,
        f"1:{MARKER}",
        f"1:{SHORT}",
        f"1:{ONE}{SHORT}",
        f"1:{ONE},1:{SHORT}",
        f"1:{ONE},1:{ONE}",
        f"0:{ONE}",
        f"-1:{ONE}",
        f"٣:{ONE}",
        f"4294967296:{ONE}",
        f"{'9' * 5000}:{ONE}",
        f":{ONE}",
        f"1:{ONE},",
        f"1:{ONE}\n{MARKER}",
        f"1:{ONE[:-1]}",
    ],
)
def test_keys_that_make_no_sense_are_refused_unseen(text: str) -> None:
    with pytest.raises(StartupRefused, match="VAULT_MASTER_KEYS") as caught:
        environment_vault(text)
    for value in (MARKER, SHORT, ONE):
        assert value not in answered(caught.value)
