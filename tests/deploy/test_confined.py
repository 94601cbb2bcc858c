"""The platform as units and containers run it: an ordinary user, a root that it cannot write to,
and its own folder."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.built_dist import LIMIT_SECONDS, run
from trading_intents.config import PREFIX

pytestmark = pytest.mark.slow

USER = "65534"  # nobody; initdb needs a user with a name, as the container has
# A checkout below /tmp would be hidden by a /tmp of its own.
OWN_TMP = "true" if sys.prefix.startswith("/tmp/") else "mount -t tmpfs tmpfs /tmp"
CONFINE = f"""
mount --bind "$1" "$1" && {OWN_TMP} && mount -o remount,bind,ro / || exit 77
exec setpriv --reuid "$2" --regid "$2" --clear-groups --no-new-privs --bounding-set=-all "$3" serve
"""
NOT_PERMITTED = 77


@contextmanager
def confined(data_dir: Path) -> Iterator[dict[str, str]]:
    """`trading-intents serve`, and the variables by which commands find it."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((PREFIX, "PYTHONPATH"))
    }
    environ |= {"PYTHONDONTWRITEBYTECODE": "1", f"{PREFIX}DATA_DIR": str(data_dir)}
    environ |= {f"{PREFIX}HTTP_PORT": "0", f"{PREFIX}GRPC_PORT": "0"}
    program = f"{sys.prefix}/bin/trading-intents"
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        CONFINE,
        "sh",
        str(data_dir),
        USER,
        program,
    ]
    with subprocess.Popen(
        command, cwd="/", env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        try:
            for line in process.stderr:
                lines.append(line)
                if line.startswith("{") and json.loads(line)["event"] == "serving":
                    break
            else:
                if process.wait() == NOT_PERMITTED:
                    pytest.skip("no mounts in a namespace of one's own here")
                raise AssertionError("".join(lines))
            yield environ
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(LIMIT_SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become the user of the container")
@pytest.mark.skipif(
    not all(folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.prefix, "bin").parents),
    reason="other users may not enter the checkout's folder: chmod o+x it and those above",
)
def test_an_order_is_filled_on_a_read_only_root() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        data_dir = Path(folder, "data")
        data_dir.mkdir(mode=0o700)
        os.chown(data_dir, int(USER), int(USER))
        Path(folder).chmod(0o711)
        with confined(data_dir) as environ:
            variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
            ordered = run(
                [f"{sys.prefix}/bin/trading-intents", "buy", "AAPL", "10", "--wait"],
                Path("/"),
                **variables,
            )
        assert ordered.startswith("BUY 10 AAPL: FILLED 10 at ")
