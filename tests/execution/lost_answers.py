"""A worker whose commits lose their answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.conftest import Urls
from tests.execution.in_process_execution import InProcessExecution, executing, open_in_process
from tests.fakes import FakeVenue
from tests.proxy import Verdict, proxied
from trading_intents.execution.service import Execution


class LostAnswers:
    """Ends every connection of the worker's pool whose COMMIT is answered, or that sends a named
    statement, while it is on."""

    is_on = False
    statement: bytes | None = None
    count = 0

    def look(self, data: bytes) -> Verdict:
        if not self.is_on or (self.statement or b"COMMIT\0") not in data:
            return Verdict.PASS
        self.count += 1
        return Verdict.CUT_UNSENT if self.statement else Verdict.CUT_UNANSWERED


@asynccontextmanager
async def executing_through(
    urls: Urls, accounts: int = 1, venue: FakeVenue | None = None
) -> AsyncIterator[tuple[InProcessExecution, Execution, LostAnswers]]:
    lost = LostAnswers()
    async with open_in_process(urls, accounts, venue) as in_process:
        with proxied(urls.login, lost.look) as (_, login):
            async with executing(replace(in_process, urls=replace(urls, login=login))) as execution:
                yield in_process, execution, lost
