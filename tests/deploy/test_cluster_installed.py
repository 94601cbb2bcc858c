"""The cluster as docs/operating/cluster.md installs it, on eight bare Debians that are connected to
one switch. The commands are run as the document has them, in its order; then machines are taken
away."""

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.built_dist import make_dist
from tests.deploy.bare_machine import BareMachine, Network, make_debian, make_wheels, make_wheels_of
from tests.deploy.documented_steps import ACME, FILLED, block, is_there, key_of
from tests.deploy.programs import ROOT
from tests.waiting import eventually
from trading_intents.config import PREFIX

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

TEXT = (ROOT / "docs" / "operating" / "cluster.md").read_text()
ADDRESSES = {
    **{f"pg-{number}": f"10.0.2.{number}" for number in (1, 2, 3)},
    **{f"api-{number}": f"10.0.1.{number}" for number in (1, 2)},
    **{f"worker-{number}": f"10.0.3.{number}" for number in (1, 2)},
    "front": "10.0.0.10",
}
HEALTHY = [("leader", "running"), ("replica", "streaming"), ("sync_standby", "streaming")]
COME_SECONDS = 120
BACK_SECONDS = 90


def blocks(heading: str) -> list[str]:
    """The commands of one part of the document."""
    (part,) = [each for each in TEXT.split("\n## ") if each.startswith(f"{heading}\n")]
    return re.findall(r"```sh\n(.*?)```", part, re.DOTALL)


(SHELL,) = blocks("# Several machines")
PG_PACKAGES, POSTGRESQL = blocks("PostgreSQL")
(DATABASE,) = blocks("The database")
PACKAGES, SETTINGS, WORKER_SETTINGS, FIRST_START, NEXT_START = blocks("API machines and workers")
FRONT_PACKAGES, FRONT, DOCTOR = blocks("In front")
*INSTALL, _START = block("### One machine, by systemd", "sh").splitlines(keepends=True)
CLUSTER = "sudo /opt/patroni/bin/patronictl -c /etc/patroni/patroni.yml"


def packages(*commands: str) -> set[str]:
    """Debian's, where the document names those of postgresql.org."""
    named = re.findall(r"^sudo apt-get install -y (.*)$", "".join(commands), re.MULTILINE)
    return {name.replace("postgresql-18", "postgresql") for line in named for name in line.split()}


def make_parts(folder: Path) -> None:
    """Of machines: their files, and the packages that they find beside them."""
    make_debian(folder / "pg.tar", *packages(PG_PACKAGES))
    make_debian(folder / "other.tar", *packages(PACKAGES, FRONT_PACKAGES))
    (requirement,) = re.findall(r"pip install '(patroni\S+)'", TEXT)
    make_wheels(folder / "wheels")
    make_wheels_of(requirement, folder / "patroni")
    make_dist(folder / "dist")


class Machines:
    """Each by its name."""

    def __init__(self, folder: Path, network: Network) -> None:
        self._by_name: dict[str, BareMachine] = {}
        self.key = ""
        for name, address in ADDRESSES.items():
            archive, wheels = (
                ("pg.tar", "patroni") if name.startswith("pg-") else ("other.tar", "wheels")
            )
            parts = folder / archive, folder / wheels, folder / "dist"
            self._by_name[name] = BareMachine(folder / name, *parts, network.connect(name, address))

    def boot(self, *names: str) -> None:
        for name in names:
            self._by_name[name].start()
        for name in names:
            self._by_name[name].until_up()

    def lose(self, *names: str) -> None:
        for name in names:
            self._by_name[name].lose_power()

    def run(self, name: str, *commands: str) -> str:
        """In the shell that the document prepares."""
        here = f"NODE={name} ADDRESS={ADDRESSES[name]}"
        shell = re.sub(r"^NODE=\S+ ADDRESS=\S+", here, SHELL, flags=re.MULTILINE).replace(
            "=...", "=secret"
        )
        return self._by_name[name].run(shell + "".join(commands))

    def run_on_all(self, names: list[str], *commands: str) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: self.run(name, *commands), names))

    def members(self) -> dict[str, tuple[str, str]]:
        """Role and state of each, as the first node that answers sees them."""
        for name in ("pg-1", "pg-2", "pg-3"):
            try:
                found = json.loads(self.run(name, f"{CLUSTER} list -f json"))
            except (AssertionError, LookupError, FileNotFoundError):  # it is away
                continue
            return {
                each["Member"]: (each["Role"].lower().replace(" ", "_"), each["State"])
                for each in found
            }
        return {}

    def leader(self) -> str:
        return next(name for name, (role, _) in self.members().items() if role == "leader")

    def until_healthy(self) -> None:
        eventually(lambda: sorted(self.members().values()) == HEALTHY, COME_SECONDS)

    def buy(self, name: str = "api-1") -> str:
        """A customer's program on that machine buys through the machine in front, and gets the
        order's id."""
        client = {
            f"{PREFIX}URL": "https://10.0.0.10",
            f"{PREFIX}API_KEY": self.key,
            "SSL_CERT_FILE": "/srv/trading-intents/certificate.pem",
        }
        variables = " ".join(f"{name}={value}" for name, value in client.items())
        bought = self.run(
            name, f"{variables} /opt/trading-intents/bin/trading-intents buy AAPL 10 --wait"
        )
        assert bought.startswith(FILLED)
        return bought.split()[-1]

    def until_bought(self, name: str = "api-1") -> None:
        eventually(is_there(lambda: self.buy(name)), BACK_SECONDS)

    def carry(self, file: str, source: str, *targets: str) -> None:
        for target in targets:
            shutil.copy(self._by_name[source].source / file, self._by_name[target].source)


def install(machines: Machines) -> None:
    databases = ["pg-1", "pg-2", "pg-3"]
    older = "sed -i s#postgresql/18#postgresql/15# deploy/patroni/patroni.yml\n"
    machines.run_on_all(databases, older, POSTGRESQL.replace("18 main", "15 main"))
    machines.until_healthy()
    machines.run(machines.leader(), DATABASE)

    workers = ["worker-1", "worker-2"]
    machines.run_on_all(["api-1", "api-2", *workers], *INSTALL, SETTINGS)
    machines.run_on_all(workers, WORKER_SETTINGS)
    machines.run("api-1", FIRST_START)
    machines.carry("keys.tar", "api-1", "api-2", *workers)
    machines.run("api-2", NEXT_START)
    machines.run_on_all(workers, NEXT_START.replace("-api", "-worker"))
    machines.run("front", FRONT)
    machines.carry("certificate.pem", "front", "api-1", "api-2", "worker-1")
    (migrate,) = re.findall(r"^AT=.*? migrate$", FIRST_START, re.MULTILINE | re.DOTALL)
    apply = migrate.replace(
        "trading-intents migrate",
        f"trading-intents admin apply - <<'JSON'\n{json.dumps(ACME)}\nJSON",
    )
    machines.key = key_of(machines.run("api-1", apply))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    make_parts(folder)
    network = Network()
    try:
        made = Machines(folder, network)
        try:
            made.boot(*ADDRESSES)
            install(made)
            yield made
        finally:
            made.lose(*ADDRESSES)
    finally:
        network.end()
        shutil.rmtree(folder)


def test_an_order_is_filled_after_the_documented_commands(machines: Machines) -> None:
    machines.until_bought()


@pytest.mark.parametrize("name", ["api-1", "api-2", "worker-1", "worker-2"])
def test_the_doctor_finds_nothing_wrong(machines: Machines, name: str) -> None:
    assert not re.search(r"^(wrong|warning)", machines.run(name, DOCTOR), re.MULTILINE)


def test_nobody_speaks_to_postgresql_without_tls(machines: Machines) -> None:
    query = """
        SELECT DISTINCT usename, ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE client_addr IS NOT NULL
    """
    found = machines.run(machines.leader(), f"sudo -u postgres psql -XAtc '{query}'").split()
    assert {"trading_intents|t", "trading_intents_worker|t", "replicator|t"} <= set(found)
    assert not [each for each in found if each.endswith("|f")]


def test_orders_go_on_after_a_switchover(machines: Machines) -> None:
    before = machines.leader()
    bought = machines.buy()
    machines.run(before, f"{CLUSTER} switchover --force")
    machines.until_bought()
    assert machines.leader() != before
    assert bought in exported(machines)
    machines.until_healthy()


def test_orders_go_on_after_the_primarys_machine_was_lost_and_it_comes_back(
    machines: Machines,
) -> None:
    before = machines.leader()
    bought = machines.buy()
    machines.lose(before)
    machines.until_bought()
    assert bought in exported(machines)
    machines.boot(before)
    machines.until_healthy()


@pytest.mark.parametrize(
    ("lost", "caller"), [("api-1", "api-2"), ("worker-2", "api-1"), ("worker-1", "api-1")]
)
def test_orders_go_on_without_any_one_machine(machines: Machines, lost: str, caller: str) -> None:
    machines.lose(lost)
    machines.until_bought(caller)
    machines.boot(lost)
    eventually(
        is_there(lambda: machines.run(lost, f"systemctl is-active {unit(lost)}")), BACK_SECONDS
    )
    machines.until_bought(caller)


def test_all_of_it_comes_back_after_a_loss_of_all_power(machines: Machines) -> None:
    bought = machines.buy()
    machines.lose(*ADDRESSES)
    machines.boot(*ADDRESSES)
    machines.until_healthy()
    machines.until_bought()
    assert bought in exported(machines)


def unit(name: str) -> str:
    return f"trading-intents-{name.partition('-')[0]}"


def exported(machines: Machines) -> str:
    """The account's orders, as the platform has them."""
    variables = (
        f"{PREFIX}URL=https://10.0.0.10 {PREFIX}API_KEY={machines.key} "
        "SSL_CERT_FILE=certificate.pem"
    )
    return machines.run(
        "api-1", f"{variables} /opt/trading-intents/bin/trading-intents export orders"
    )
