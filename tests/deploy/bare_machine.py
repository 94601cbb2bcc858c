"""A newcomer's machine: a bare Debian that systemd boots, without a network or at a switch with
others like it. What
`make dist` and deploy/ have is in its folder /srv/trading-intents, and packages of PyPI are beside
it. It runs in a container of systemd's own."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.programs import DEPLOY, ROOT, find
from tests.waiting import eventually

PACKAGES = (
    "ca-certificates",
    "dbus",
    "python-is-python3",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
)
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
MAKE_SECONDS = 900
BOOT_SECONDS = 120
COMMAND_SECONDS = 300
PIP_CONF = "[global]\nno-index = true\nfind-links = /srv/wheels\n"
# Without a group of its own, a machine would share its units' groups with every other one, which
# removes them.
IN_GROUPS = 'for each in $GROUPS_OF_ITS_OWN; do echo $$ >"$each/cgroup.procs"; done; exec "$@"'
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check(
    command: list[str],
    limit_seconds: float,
    stdin: str = "",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    done = subprocess.run(
        command,
        input=stdin,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=limit_seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout


def make_debian(archive: Path, *packages: str) -> None:
    """An archive of its files, from the packages that this machine's apt knows."""
    if os.getuid() != 0:
        pytest.skip("only root may make a machine")
    find("systemd-nspawn", "it is in the package systemd-container")
    program = find("mmdebstrap", "it is in the package mmdebstrap")
    options = [f"--dpkgopt=path-exclude={folder}" for folder in LEFT_OUT]
    included = f"--include={','.join((*PACKAGES, *packages))}"
    check(
        [program, "-q", "--variant=minbase", included, *options, "bookworm", str(archive)],
        MAKE_SECONDS,
    )


def make_wheels(folder: Path) -> None:
    """Those of the lock, for Debian's Python."""
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    check(
        [*download, "--require-hashes", "-r", str(ROOT / "requirements.lock"), "-d", str(folder)],
        MAKE_SECONDS,
    )


def make_wheels_of(requirement: str, folder: Path) -> None:
    """Those of what has none among them too, in the versions that deploy/ is checked with."""
    folder.mkdir()
    pinned = re.findall(r"^\S+==\S+", (ROOT / "requirements-deploy.lock").read_text(), re.MULTILINE)
    (folder / "constraints").write_text("\n".join(pinned))
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "-c",
        str(folder / "constraints"),
        "-w",
        str(folder),
    ]
    check([*build, requirement], MAKE_SECONDS)


def systemd_hierarchies() -> list[Path]:
    """The control groups of this process, in the hierarchies in which systemd keeps its units."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controllers: path for _, controllers, path in own}
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    unified = [Path(mount[1] + paths[""]) for mount in mounts if mount[2] == "cgroup2"]
    named = [
        Path(mount[1] + paths["name=systemd"])
        for mount in mounts
        if "name=systemd" in mount[3].split(",")
    ]
    return unified + named


class Network:
    """A switch to which machines are connected, each by an address of its own."""

    def __init__(self) -> None:
        self._name = f"m{os.getpid()}"
        self._namespaces = [f"{self._name}-net"]
        self._ip("netns add", self._namespaces[0])
        self._ip(f"-n {self._name}-net link add name switch type bridge")
        self._ip(f"-n {self._name}-net link set switch up")

    def connect(self, node: str, address: str) -> Path:
        """Gives the namespace for the machine."""
        inside = f"{self._name}-{node}"
        net = f"{self._name}-net"
        self._ip("netns add", inside)
        self._namespaces.append(inside)
        self._ip(f"-n {inside} link set lo up")
        self._ip(f"-n {net} link add name {node} type veth peer name eth0 netns {inside}")
        self._ip(f"-n {net} link set {node} master switch up")
        self._ip(f"-n {inside} addr add {address}/16 dev eth0")
        self._ip(f"-n {inside} link set eth0 up")
        return Path("/run/netns", inside)

    def end(self) -> None:
        for name in self._namespaces:
            self._ip("netns del", name)

    @staticmethod
    def _ip(command: str, *arguments: str) -> None:
        check(["ip", *command.split(), *arguments], COMMAND_SECONDS)


class BareMachine:
    _process: subprocess.Popen[bytes]
    _flaw = "it has not begun"

    def __init__(
        self, root: Path, archive: Path, wheels: Path, dist: Path, network: Path | None = None
    ) -> None:
        self.root = root
        self._name = root.name
        self._network = network
        self._groups = [where / f"{self._name}-{os.getpid()}" for where in systemd_hierarchies()]
        root.mkdir()
        check(["tar", "-xf", str(archive), "-C", str(root)], COMMAND_SECONDS)
        source = self.source = root / "srv" / "trading-intents"
        shutil.copytree(DEPLOY, source / "deploy")
        shutil.copytree(dist, source / "dist")
        shutil.copytree(wheels, root / "srv" / "wheels")
        shutil.copy(ROOT / "requirements.lock", source)
        (root / "etc" / "pip.conf").write_text(PIP_CONF)
        (root / "etc" / "hostname").write_text(f"{self._name}\n")
        (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost {self._name}\n")

    def start(self) -> None:
        """Switches it on."""
        program = find("systemd-nspawn", "it is in the package systemd-container")
        net = f"--network-namespace-path={self._network}" if self._network else "--private-network"
        options = [
            "--register=no",
            "--keep-unit",
            net,
            f"--hostname={self._name}",
            "--console=pipe",
        ]
        for group in self._groups:
            group.mkdir(exist_ok=True)
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                ["sh", "-c", IN_GROUPS, "sh", program, "-q", "-b", "-D", str(self.root), *options],
                env={**os.environ, "GROUPS_OF_ITS_OWN": " ".join(map(str, self._groups))},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def until_up(self) -> None:
        try:
            eventually(self._is_up, BOOT_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{self._name} is not up: {self._flaw}\n{self._said()}") from error

    def boot(self) -> None:
        self.start()
        self.until_up()

    @property
    def _console(self) -> Path:
        return self.root.with_name(f"{self._name}.log")

    def lose_power(self) -> None:
        """Everything in it ends at once."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, LookupError):
                os.kill(self._leader(), signal.SIGKILL)
        self._process.wait(COMMAND_SECONDS)
        for group in self._groups:
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)

    def run(self, script: str) -> str:
        """A shell of root's runs the commands; one that fails fails the test. Gives what they
        print."""
        return check([*self._inside(), "sh", "-ec", script], COMMAND_SECONDS, cwd=Path("/"))

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self._said()
        try:
            self.run("systemctl is-system-running --wait || true")
            failed = self.run("systemctl list-units --failed --plain --no-legend").splitlines()
        except (AssertionError, LookupError) as error:  # it has not begun, or its bus has not
            self._flaw = repr(error)
            return False
        flaws = [line.split()[0] for line in failed]
        self._flaw = "".join(
            self.run(f"systemctl status --no-pager {unit} || true") for unit in flaws
        )
        return not flaws

    def _said(self) -> str:
        return self._console.read_text(errors="replace")

    def _leader(self) -> int:
        """The process that is the first one there."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _inside(self) -> list[str]:
        entered = ["nsenter", "-t", str(self._leader()), "-m", "-u", "-i", "-n", "-p", "-C"]
        return [*entered, "env", "-i", PATH, "LANG=C.UTF-8"]
