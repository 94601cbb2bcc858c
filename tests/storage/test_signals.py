"""A listener whose URL cannot be read, or whose server dies or answers nonsense."""

import asyncio
from pathlib import Path

from tests.conftest import Urls
from tests.platform import serving
from tests.proxy import Verdict, proxied
from tests.storage.conftest import query
from tests.waiting import eventually
from trading_intents.storage.signals import open_signals
from trading_intents.telemetry import make_log

NOTICED_SECONDS = 30
CHANNEL = "ti_test"
# With a row whose fields are missing.
NONSENSE = b"1\0\0\0\4t\0\0\0\6\0\0T\0\0\0\10\0\5abZ\0\0\0\5I"


def test_an_unreadable_listen_url_is_reported_without_its_password(
    urls: Urls, tmp_path: Path
) -> None:
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    settings["DATABASE_LISTEN_URL"] = "postgresql://someone:Marked/Secret@127.0.0.1/x"
    with serving(tmp_path, **settings) as platform:
        eventually(lambda: any("signals lost" in line for line in platform.logs), NOTICED_SECONDS)
    assert "Marked" not in "".join(platform.logs)


async def test_a_listener_goes_on_after_the_last_words_of_a_server(urls: Urls) -> None:
    called = asyncio.Event()

    async def is_called() -> None:
        async with asyncio.timeout(NOTICED_SECONDS):
            await called.wait()
        called.clear()

    with proxied(urls.login) as (proxy, url):
        async with open_signals(url, make_log("error")) as signals:
            signals.subscribe(CHANNEL, called.set)
            await is_called()
            proxy.send_last_words()
            # The same way and later, so that the listener has read them.
            await query(url.reveal(), "SELECT 1")
            signals.notify("ti_other")
            await is_called()
            await query(urls.owner.reveal(), f"NOTIFY {CHANNEL}")
            await is_called()


async def test_a_listener_goes_on_after_an_answer_that_is_no_answer(urls: Urls) -> None:
    called = asyncio.Event()
    answered = list[bytes]()

    def answer_once(data: bytes) -> Verdict | bytes:
        if b"LISTEN" not in data or answered:
            return Verdict.PASS
        answered.append(data)
        return NONSENSE

    with proxied(urls.login, answer_once) as (_, url):
        async with open_signals(url, make_log("error")) as signals:
            signals.subscribe(CHANNEL, called.set)
            async with asyncio.timeout(NOTICED_SECONDS):
                await called.wait()
    assert answered
