"""A platform that is killed and started again on the same port, while clients go on."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg

from tests.background import working
from tests.execution.worker_processes import HURRY_PROOFS
from tests.free_port import free_port
from tests.platform import Platform, serving
from tests.tenants import PLENTY
from trading_intents.storage.embedded.cluster import DATABASE, OWNER, open_cluster

RESTART_LIMIT_SECONDS = 120
# A loaded machine may take longer to start again than a command may usually wait to be sent.
PATIENT = {"EXECUTION_MAX_AGE_MILLIS": "600000"}


HURRY_SECONDS = 0.3


@contextlib.contextmanager
def hurried_proofs(folder: Path) -> Iterator[None]:
    """As if the ten seconds between two proofs of absence had gone, of every order that a kill left
    in doubt."""
    url = open_cluster(folder, "").url(OWNER, DATABASE).reveal()

    def hurry(over: threading.Event) -> None:
        while not over.wait(HURRY_SECONDS):
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(url, autocommit=True) as connection,
            ):
                connection.execute(HURRY_PROOFS)

    with working(hurry):
        yield


class RestartedPlatform:
    """Serves in a thread. Each of `kills` says of one end whether it is a kill or an orderly
    stop."""

    def __init__(self, folder: Path, kills: Sequence[bool], **settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._kills = kills
        self._settings = PLENTY | PATIENT | {"HTTP_PORT": str(self.port)} | settings
        self._is_due = [threading.Event() for _ in kills]
        self._finished = threading.Event()
        self.ended = 0
        self.serves = threading.Event()

    def restart(self) -> None:
        """Ends the present process, if there is another end to come."""
        due = next((event for event in self._is_due if not event.is_set()), None)
        if due is not None:
            due.set()

    @contextlib.contextmanager
    def running(self) -> Iterator["RestartedPlatform"]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            assert self.serves.wait(RESTART_LIMIT_SECONDS)
            yield self
        finally:
            self._finished.set()
            for event in self._is_due:
                event.set()
            thread.join()

    def _serve(self) -> None:
        for due, is_kill in zip(self._is_due, self._kills, strict=True):
            with serving(self._folder, **self._settings) as platform:
                self.serves.set()
                due.wait()
                self._end(platform, is_kill)
            if self._finished.is_set():
                return
        with serving(self._folder, **self._settings):
            self.serves.set()
            self._finished.wait()

    def _end(self, platform: Platform, is_kill: bool) -> None:
        self.ended += 1
        if is_kill:
            platform.process.kill()
            platform.process.wait()
        else:
            assert platform.stop() == 0
