"""The files by which the platform is installed, checked by the programs that read them."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.certificates import make_certificate
from tests.deploy.programs import DEPLOY, ROOT, find, run
from trading_intents.config import CLIENT_VARIABLES, PREFIX, load, names
from trading_intents.storage.embedded.cluster import find_binaries

pytestmark = pytest.mark.slow

UNITS = sorted((DEPLOY / "systemd").glob("trading-intents*"))
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
MAX_EXPOSURE = 20  # tenths of systemd's measure, of 100: others call it OK up to 50
KUBERNETES = "1.31"


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """As they are, but for the programs' folders: systemd looks whether they are there."""
    programs = {
        "/opt/trading-intents/bin": f"{sys.prefix}/bin",
        "/opt/patroni/bin/patroni": find("patroni"),
    }
    for unit in (*UNITS, DEPLOY / "patroni" / "patroni.service"):
        text = unit.read_text()
        for program, ours in programs.items():
            text = text.replace(program, ours)
        (tmp_path / unit.name).write_text(text)
    return sorted(tmp_path.iterdir())


def test_systemd_never_gives_a_process_up(units: list[Path]) -> None:
    """By itself it does after five starts in ten seconds, while a database takes longer to come."""
    served = [text for unit in units if "Restart=always" in (text := unit.read_text())]
    assert len(served) == 5, "all, the API, the worker, the forwarder, Patroni"
    assert all("\nStartLimitIntervalSec=0\n" in text.partition("[Service]")[0] for text in served)


def test_systemd_takes_every_unit_without_a_word(units: list[Path]) -> None:
    done = run("systemd-analyze", "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.name)
def test_a_service_may_do_little(service: Path) -> None:
    done = run(
        "systemd-analyze", "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", service
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_has_nothing_to_say_about_the_container_file() -> None:
    done = run("hadolint", "--failure-threshold", "style", DEPLOY / "container" / "Containerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_container_file_copies_what_exists() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    copied = [
        part
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for part in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert "requirements.lock" in copied


def test_dclint_has_nothing_to_say_about_the_compose_file(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "container" / "compose.yml", tmp_path)
    done = run("dclint", "--max-warnings", "0", "compose.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_knows_every_field(manifest: Path) -> None:
    done = run("kubernetes-validate", "--strict", "-k", KUBERNETES, manifest)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["haproxy.cfg", "primary.cfg"])
def test_haproxy_takes_its_files(tmp_path: Path, name: str) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "both.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    text = (DEPLOY / "haproxy" / name).read_text()
    (tmp_path / name).write_text(
        text.replace("/etc/haproxy/tls/trading-intents.pem", f"{tmp_path}/both.pem")
    )
    done = run("haproxy", "-c", "-f", tmp_path / name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


def test_patroni_takes_its_file(tmp_path: Path) -> None:
    text = (DEPLOY / "patroni" / "patroni.yml").read_text()
    folders = {
        "/usr/lib/postgresql/18/bin": str(find_binaries("")),
        "/var/lib/postgresql/18": str(tmp_path),
    }
    for folder, ours in folders.items():
        assert folder in text
        text = text.replace(folder, ours)
    (tmp_path / "patroni.yml").write_text(text)
    done = run("patroni", "--validate-config", "--ignore-listen-port", tmp_path / "patroni.yml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_documents_say_what_each_file_is_for() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert [str(path) for path in files if path.name not in text and path.stem not in text] == []


def test_every_setting_that_a_file_names_is_one() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    named = {
        name for path in files for name in re.findall(rf"\b{PREFIX}([A-Z_]+)", path.read_text())
    }
    assert named - {name.removeprefix(PREFIX) for name in names()} - set(CLIENT_VARIABLES) == set()
    assert len(named) > 10


def test_the_settings_of_kubernetes_are_complete() -> None:
    """Those of the ConfigMap with the secrets that it refers to start a process."""
    config = yaml.safe_load((DEPLOY / "kubernetes" / "settings.yaml").read_text())["data"]
    load(config | {f"{PREFIX}DATABASE_URL": "postgresql://x@db/x"})
