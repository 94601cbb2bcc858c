"""The platform as docs/operating/install.md installs it: by systemd on a bare Debian, and in
containers. Commands are run as the document has them, and every unit and service is started.
Nothing here has a network but a loopback."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.built_dist import make_dist
from tests.deploy.bare_machine import (
    COMMAND_SECONDS,
    MAKE_SECONDS,
    PIP_CONF,
    BareMachine,
    check,
    make_debian,
    make_wheels,
)
from tests.deploy.documented_steps import ACME, FILLED, TEXT, block, is_there, key_of
from tests.deploy.programs import DEPLOY, ROOT, find
from tests.waiting import eventually
from trading_intents.config import PREFIX

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

READY_SECONDS = 60
MANY_STARTS = 8
APPLY = f"admin apply - <<'JSON'\n{json.dumps(ACME)}\nJSON\n"
RECEIVER = """
import http.server

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open("/root/received", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()
"""


(DOCTOR,) = re.findall(r"`(sudo -u trading-intents .* doctor)`", TEXT)
COMMAND = DOCTOR.removesuffix("doctor")
(READY,) = re.findall(
    r"^ +- (import .*)$", (DEPLOY / "container" / "compose.yml").read_text(), re.MULTILINE
)
SERVES = f"python3 -c '{READY}'\n{DOCTOR}"
LOGINS = block("## External PostgreSQL", "sql").replace("...", "secret")
URLS = {
    f"{PREFIX}DATABASE_{name}URL": f"postgresql://trading_intents{login}:secret@127.0.0.1/trading_intents"
    for name, login in (("", ""), ("WORKER_", "_worker"), ("OWNER_", "_owner"))
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("parts")
    made = SimpleNamespace(
        debian=folder / "debian.tar", wheels=folder / "wheels", dist=folder / "dist"
    )
    make_debian(made.debian, "postgresql")
    make_wheels(made.wheels)
    make_dist(made.dist)
    yield made
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def machine(
    parts: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BareMachine]:
    """One on which the documented commands were run."""
    folder = tmp_path_factory.mktemp("machine")
    made = BareMachine(folder / "bare", parts.debian, parts.wheels, parts.dist)
    try:
        made.boot()
        made.run(f"cd /srv/trading-intents\n{block('### One machine, by systemd', 'sh')}")
        eventually(is_there(lambda: made.run(SERVES)), READY_SECONDS)
        yield made
    finally:
        made.lose_power()
        shutil.rmtree(folder)


def test_an_order_is_filled_after_the_documented_commands(machine: BareMachine) -> None:
    assert machine.run(f"{COMMAND} buy AAPL 10 --wait").startswith(FILLED)
    assert "trading-intents-backup.timer" in machine.run("systemctl list-timers --no-pager")


def test_the_unit_comes_back_after_a_kill_and_after_a_loss_of_power(machine: BareMachine) -> None:
    bought = machine.run(f"{COMMAND} buy AAPL 10 --wait")
    machine.run("systemctl kill -s KILL --kill-who=main trading-intents")
    eventually(is_there(lambda: machine.run(SERVES)), READY_SECONDS)
    assert machine.run("systemctl show --value -p NRestarts trading-intents").strip() == "1"
    again = machine.run(f"{COMMAND} buy AAPL 10 --wait")
    machine.lose_power()
    machine.boot()
    eventually(is_there(lambda: machine.run(SERVES)), READY_SECONDS)
    orders = machine.run(f"{COMMAND} export orders").splitlines()
    assert [
        len([line for line in orders if each.split()[-1] in line]) for each in (bought, again)
    ] == [1, 1]
    assert machine.run(f"{COMMAND} buy AAPL 10 --wait").startswith(FILLED)


def test_the_timers_unit_makes_a_backup_that_can_be_restored(machine: BareMachine) -> None:
    bought = machine.run(f"{COMMAND} buy AAPL 10 --wait")
    machine.run("systemctl start trading-intents-backup")
    (backup,) = machine.run("ls -d /var/lib/trading-intents-backups/*").split()
    elsewhere = COMMAND.replace("DATA_DIR=/var/lib/trading-intents", "DATA_DIR=/tmp/restored")
    machine.run(f"cd /tmp && {elsewhere} restore {backup} && {elsewhere} audit verify")
    assert bought.split()[-1] in machine.run(f"{COMMAND} export orders")


def test_the_unit_ends_without_a_trace(machine: BareMachine) -> None:
    assert machine.run("find /proc -maxdepth 1 -user trading-intents") != ""
    machine.run("systemctl stop trading-intents")
    shown = machine.run("systemctl show -p Result -p ExecMainStatus -p ActiveState trading-intents")
    assert set(shown.split()) == {"Result=success", "ExecMainStatus=0", "ActiveState=inactive"}
    assert machine.run("find /proc -maxdepth 1 -user trading-intents") == ""
    machine.run("systemctl start trading-intents")
    eventually(is_there(lambda: machine.run(SERVES)), READY_SECONDS)


def test_units_of_each_role_trade_beside_a_postgresql_of_ones_own(machine: BareMachine) -> None:
    """Debian's. A third unit forwards what happens."""
    machine.run(f"sudo -u postgres psql -v ON_ERROR_STOP=1 <<'SQL'\n{LOGINS}SQL\n")
    urls = " ".join(f"{name}={url}" for name, url in URLS.items())
    settings = "/etc/trading-intents/settings.env"
    machine.run(
        f"sed -i -E 's/^#(.*_DATABASE.*)\\.\\.\\.@db.example/\\1secret@127.0.0.1/' {settings}"
    )
    machine.run(
        f"{COMMAND.replace('sudo -u trading-intents', f'sudo -u trading-intents {urls}')} migrate"
    )
    machine.run("systemctl disable --now trading-intents")
    machine.run("systemctl enable --now trading-intents-api trading-intents-worker")
    with_settings = f"set -a; . {settings}; set +a; cd /\n{COMMAND.replace('sudo', 'sudo -E')}"
    eventually(
        is_there(lambda: machine.run(f"python3 -c '{READY}'\n{with_settings} doctor")),
        READY_SECONDS,
    )
    client = {
        f"{PREFIX}URL": "http://127.0.0.1:8080",
        f"{PREFIX}API_KEY": key_of(machine.run(f"export {urls}\n{with_settings}{APPLY}")),
    }

    forwarded = client | {
        "FORWARD_TO": "http://127.0.0.1:9000/",
        "FORWARD_ACCOUNT": "sim",
        "FORWARD_KINDS": "broker_trade",
    }
    lines = "\n".join(f"{name}={value}" for name, value in forwarded.items())
    machine.run(f"cat > /etc/trading-intents/forward-acme.env <<'ENV'\n{lines}\nENV\n")
    machine.run(
        "echo whsec_$(head -c 32 /dev/urandom | base64) > /etc/trading-intents/forward-acme.secret"
    )
    machine.run(f"systemd-run --unit=receiver python3 -c '{RECEIVER}'")
    machine.run("systemctl enable --now trading-intents-forward@acme")
    journal = "journalctl --no-pager -u trading-intents-forward@acme"
    eventually(lambda: "forwarding events" in machine.run(journal), READY_SECONDS)

    variables = " ".join(f"{name}={value}" for name, value in client.items())
    buy = f"{variables} /opt/trading-intents/bin/trading-intents buy AAPL 10 --wait"
    assert machine.run(buy).startswith(FILLED)
    eventually(is_there(lambda: machine.run("test -s /root/received")), READY_SECONDS)
    received = [json.loads(line) for line in machine.run("cat /root/received").splitlines()]
    assert {"broker_trade"} == {kind for each in received for kind in each if kind != "cursor"}

    # By itself systemd gives a unit up that was started five times in ten seconds.
    machine.run(
        "systemctl stop postgresql\nsystemctl restart trading-intents-api trading-intents-worker"
    )
    for unit in ("trading-intents-api", "trading-intents-worker"):
        eventually(lambda unit=unit: count_starts(machine, unit) > MANY_STARTS, READY_SECONDS)  # type: ignore[misc]  # bound now
    machine.run("systemctl start postgresql")
    eventually(is_there(lambda: machine.run(buy)), READY_SECONDS)


def count_starts(machine: BareMachine, unit: str) -> int:
    return int(machine.run(f"systemctl show --value -p NRestarts {unit}"))


class Containers:
    """Podman with a store and a network namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._namespace = f"c{os.getpid()}"
        for program in ("podman", "runc"):
            find(program, f"it is in the package {program}")
        check(["ip", "netns", "add", self._namespace], COMMAND_SECONDS)
        check(["ip", "-n", self._namespace, "link", "set", "lo", "up"], COMMAND_SECONDS)
        # A machine may not let its root raise them.
        limits = '"nofile=16384:16384", "nproc=4096:4096"'
        runtime = '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'
        (folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = [{limits}]\n{runtime}"
        )
        roots = f'graphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        (folder / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{roots}')
        files = {
            "CONTAINERS_CONF": f"{folder}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
        }
        self._environ = {**os.environ, **files, "BUILDAH_ISOLATION": "chroot"}

    def run(self, command: str, *arguments: str, stdin: str = "", cwd: Path = ROOT) -> str:
        inside = ["nsenter", f"--net=/run/netns/{self._namespace}", *command.split(), *arguments]
        return check(inside, MAKE_SECONDS, stdin, env=self._environ, cwd=cwd)

    def end(self) -> None:
        self.run("podman rm --all --force")
        self.run("podman system reset --force")
        check(["ip", "netns", "del", self._namespace], COMMAND_SECONDS)


@pytest.fixture(scope="module")
def containers(
    parts: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containers]:
    """With the image, made from the documented command on Debian's Python instead of the official
    image."""
    folder = tmp_path_factory.mktemp("containers")
    opened = Containers(folder)
    try:
        official = re.findall(
            r"^FROM (\S+)$", (DEPLOY / "container" / "Containerfile").read_text(), re.MULTILINE
        )[0]
        opened.run("podman import -q", str(parts.debian), official)
        (folder / "pip.conf").write_text(PIP_CONF)
        (build,) = re.findall(r"`(podman build -f .*?)`", TEXT)
        mounts = (
            f" -v {parts.wheels}:/srv/wheels:ro -v {folder}/pip.conf:/etc/pip.conf:ro --network "
            "host --pull=false"
        )
        opened.run(build.replace("podman build", f"podman build {mounts}"))
        yield opened
    finally:
        opened.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_image_fills_an_order_without_a_capability_or_a_writable_root(
    containers: Containers,
) -> None:
    (options,) = re.findall(r"`(--read-only .*?)`", TEXT)
    started = (
        "podman run -d --name all --network host --security-opt no-new-privileges -v all:/data "
        f"{options}"
    )
    containers.run(f"{started} trading-intents")
    eventually(is_there(lambda: containers.run("podman exec all python -c", READY)), READY_SECONDS)
    containers.run("podman exec all trading-intents doctor")
    assert containers.run("podman exec all trading-intents buy AAPL 10 --wait").startswith(FILLED)
    assert containers.run("podman exec all id -u").strip() == "10001"
    containers.run("podman stop all")
    assert containers.run("podman inspect --format {{.State.ExitCode}} all").strip() == "0"
    containers.run("podman start all")
    eventually(is_there(lambda: containers.run("podman exec all python -c", READY)), READY_SECONDS)
    assert containers.run("podman exec all trading-intents export orders").count("\n") == 2, (
        "a head and the order"
    )
    containers.run("podman rm -f all")


def test_compose_starts_an_api_and_a_worker_beside_a_postgresql(containers: Containers) -> None:
    """They share a network here, so the worker's port is another one."""
    data = "/var/lib/postgresql/15/main"
    settings = "/etc/postgresql/15/main/postgresql.conf"
    server = f"/usr/lib/postgresql/15/bin/postgres -D {data} -c config_file={settings} -c ssl=off"
    image = containers.run("podman images -q docker.io/library/python").strip()
    started = (
        "podman run -d --name db --network host --user postgres --tmpfs /run/postgresql:mode=1777"
    )
    containers.run(f"{started} {image} {server}")
    psql = "podman exec -i --user postgres db psql -v ON_ERROR_STOP=1"
    eventually(is_there(lambda: containers.run(psql, stdin="SELECT 1")), READY_SECONDS)
    containers.run(psql, stdin=LOGINS)

    folder = containers.folder / "compose"
    folder.mkdir()
    shutil.copy(DEPLOY / "container" / "compose.yml", folder)
    worker = {"network_mode": "host", "environment": {f"{PREFIX}HTTP_PORT": "8081"}}
    services = {
        "api": {"network_mode": "host"},
        "migrate": {"network_mode": "host"},
        "worker": worker,
    }
    (folder / "here.json").write_text(json.dumps({"services": services}))
    environ = {"IMAGE": "localhost/trading-intents:latest"} | URLS
    (folder / ".env").write_text("\n".join(f"{name}={value}" for name, value in environ.items()))
    compose = f"{find('podman-compose')} -f compose.yml -f here.json"
    containers.run(f"{compose} up -d", cwd=folder)

    api = "podman exec -i trading-intents_api_1"
    eventually(is_there(lambda: containers.run(api, "python", "-c", READY)), READY_SECONDS)
    owner = f"{PREFIX}DATABASE_OWNER_URL"
    provisioned = api.replace("exec -i", f"exec -i -e {owner}={URLS[owner]}")
    applied = containers.run(f"{provisioned} trading-intents admin apply -", stdin=json.dumps(ACME))
    client = (
        f"podman exec -e {PREFIX}URL=http://127.0.0.1:8080 -e {PREFIX}API_KEY={key_of(applied)}"
    )
    bought = containers.run(f"{client} trading-intents_api_1 trading-intents buy AAPL 10 --wait")
    assert bought.startswith(FILLED)
    containers.run(f"{compose} down -v", cwd=folder)
