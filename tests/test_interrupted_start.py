"""A start that waits for somebody else: a signal ends it, and nothing waits without a limit."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests import fork_server
from tests.conftest import Urls
from tests.platform import PROGRAM, START_LIMIT_SECONDS, STOP_LIMIT_SECONDS, environment
from tests.proxy import Verdict, proxied

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_start_whose_database_does_not_answer(
    urls: Urls, tmp_path: Path, number: signal.Signals
) -> None:
    def hold(data: bytes) -> Verdict:
        return Verdict.HOLD if b"pg_roles" in data else Verdict.PASS

    with proxied(urls.login, hold) as (proxy, url):
        settings = {"DATABASE_URL": url.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
        environ = environment(tmp_path, settings)
        process = fork_server.Fork(PROGRAM, "serve", environ=environ, stderr=subprocess.PIPE)
        assert process.stderr is not None
        try:
            assert proxy.held.wait(START_LIMIT_SECONDS)
            process.send_signal(number)
            assert process.wait(STOP_LIMIT_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
        assert '"stopped"' in process.stderr.readlines()[-1]
        process.stderr.close()
