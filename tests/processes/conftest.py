"""A platform of several processes, as `trading-intents serve` runs it by default."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import copy_folder
from tests.platform import Platform, serving


def pids(platform: Platform) -> dict[str, int]:
    """The parent's children by name, each as it was last started."""
    lines = [json.loads(line) for line in list(platform.logs) if '"process ready"' in line]
    return {line["process"]: line["pid"] for line in lines}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def split(warm_original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """An API process and two workers, for all tests that leave them running."""
    with serving(
        copy_folder(warm_original, tmp_path_factory.mktemp("split") / "data"), WORKERS="2"
    ) as platform:
        yield platform
