"""What becomes of a listener whose URL cannot be read."""

from pathlib import Path

from tests.conftest import Urls
from tests.platform import serving
from tests.waiting import eventually

NOTICED_SECONDS = 10


def test_an_unreadable_listen_url_is_told_without_its_password(urls: Urls, tmp_path: Path) -> None:
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    settings["DATABASE_LISTEN_URL"] = "postgresql://someone:Marked/Secret@127.0.0.1/x"
    with serving(tmp_path, **settings) as platform:
        eventually(lambda: any("signals lost" in line for line in platform.logs), NOTICED_SECONDS)
    assert "Marked" not in "".join(platform.logs)
