"""Data folders of a platform that was started before: a test that copies one is spared an initdb."""

import shutil
from pathlib import Path

import pytest

from tests.platform import serving


@pytest.fixture(scope="session")
def warm_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Started and stopped once; never used, only copied."""
    folder = tmp_path_factory.mktemp("warm") / "data"
    with serving(folder) as platform:
        assert platform.stop() == 0
    return folder


@pytest.fixture
def warm(warm_original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warm_original, tmp_path / "data", copy_function=shutil.copy))
