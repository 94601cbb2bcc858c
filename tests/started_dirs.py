"""Platforms for tests that need not see a first start: folders that were started before, and one
that is shared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Once, copy_folder
from tests.platform import Platform, run_apart, serving
from tests.server_process import make_logins_quick
from trading_intents.storage.embedded.cluster import (
    DATABASE,
    LOGIN,
    OWNER,
    WORKER_LOGIN,
    open_cluster,
)


@pytest.fixture(scope="session")
def warm_original(once: Once) -> Path:
    """Started for the first time and stopped; never used, only copied."""

    def make(folder: Path) -> None:
        with serving(folder) as platform:
            assert platform.client.get("/readyz").json() == {"status": "ready"}
            cluster = open_cluster(folder, "")
            urls = [cluster.url(login, DATABASE) for login in (OWNER, LOGIN, WORKER_LOGIN)]
            run_apart(make_logins_quick(*urls))
            assert platform.stop() == 0

    return once("warm", make)


@pytest.fixture
def warm(warm_original: Path, tmp_path: Path) -> Path:
    return copy_folder(warm_original, tmp_path / "data")


@pytest.fixture(scope="session")
def platform(warm_original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One for all who leave it as they found it, but for what they add. Its folder is named as in a
    checkout."""
    folder = copy_folder(warm_original, tmp_path_factory.mktemp("checkout") / ".data")
    with serving(folder) as platform:
        yield platform
