"""`make dist`: what it builds works in fresh environments, outside the checkout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.built_dist import LIMIT_SECONDS, ROOT, make_dist, run
from trading_intents.config import PREFIX

pytestmark = pytest.mark.slow

SITE = Path(sysconfig.get_paths()["purelib"])
# All that the client needs, and what those need.
OF_CLIENT = ("anyio", "certifi", "h11", "httpcore", "httpx", "idna", "msgspec", "typing_extensions")
OF_COMMANDS = (
    "annotated_doc",
    "markdown_it",
    "markdown_it_py",
    "mdurl",
    "pygments",
    "rich",
    "shellingham",
    "typer",
)
ORDER = """
from trading_intents_client import FILLED, TradingClient
with TradingClient() as client:
    print(client.find_account("sim").buy("AAPL", 3).wait(until=FILLED).filled_quantity)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    (folder / "said").write_text(make_dist(folder))
    return folder


def environment(folder: Path, *wheels: Path) -> Path:
    """A fresh one with these wheels and nothing else of ours."""
    venv.create(folder, symlinks=True)
    run(
        [*pip_of(folder / "bin"), "install", "-q", "--no-deps", "--no-index", *map(str, wheels)],
        folder,
    )
    return folder / "bin"


def pip_of(programs: Path) -> list[str]:
    """Our own pip, at work there: to give each environment one takes longer than the rest of its
    making."""
    return [sys.executable, "-m", "pip", "--python", str(programs / "python")]


def borrow(programs: Path, names: tuple[str, ...]) -> None:
    for name in names:
        for part in (
            *SITE.glob(f"{name}"),
            *SITE.glob(f"{name}.py"),
            *SITE.glob(f"{name}-*.dist-info"),
        ):
            copy = shutil.copytree if part.is_dir() else shutil.copy
            copy(part, site_of(programs) / part.name)


def site_of(programs: Path) -> Path:
    (site,) = (programs.parent / "lib").glob("python*/site-packages")
    return site


@contextmanager
def serving(programs: Path, folder: Path) -> Iterator[str]:
    """`trading-intents serve` in a folder of its own."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((PREFIX, "PYTHONPATH"))
    }
    ports = {f"{PREFIX}HTTP_PORT": "0", f"{PREFIX}GRPC_PORT": "0"}
    command = [str(programs / "trading-intents"), "serve"]
    with subprocess.Popen(
        command, cwd=folder, env=environ | ports, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            logged = (json.loads(line) for line in process.stderr if line.startswith("{"))
            yield next(line["http"] for line in logged if line["event"] == "serving")
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(LIMIT_SECONDS) == 0


def test_both_distributions_have_all_of_their_files(dist: Path) -> None:
    for package, source in (
        ("trading_intents", ROOT / "src"),
        ("trading_intents_client", ROOT / "sdk" / "src"),
    ):
        files = {
            str(path.relative_to(source))
            for path in (source / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert f"{package}/py.typed" in files
        (wheel,) = dist.glob(f"{package}-*.whl")
        assert files <= set(zipfile.ZipFile(wheel).namelist())
        assert wheel.stat().st_mode & 0o777 == 0o644
        (sdist,) = dist.glob(f"{package}-*.tar.gz")
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {f"src/{file}" for file in files} | {"pyproject.toml", "README.md"} <= names


def test_descriptions_are_beside_the_wheels_whatever_npm_tools_are_missing(dist: Path) -> None:
    assert "the TypeScript client is not packed: " in (dist / "said").read_text()
    assert list(dist.glob("*.tgz")) == []
    assert "/v1/accounts" in json.loads((dist / "openapi.json").read_text())["paths"]
    assert json.loads((dist / "asyncapi.json").read_text())["asyncapi"].startswith("3.")
    demo = (dist / "bruno" / "environments" / "demo.bru").read_text()
    assert "url: http://127.0.0.1:8080" in demo
    assert (dist / "bruno" / "Intents" / "submit_intent.CREATE.bru").stat().st_mode & 0o777 == 0o644


def test_an_order_is_placed_from_one_fresh_environment_at_the_server_of_another(
    dist: Path, tmp_path: Path
) -> None:
    (server_wheel,) = dist.glob("trading_intents-*.whl")
    (client_wheel,) = dist.glob("trading_intents_client-*.whl")
    folder = tmp_path / "unrelated"
    elsewhere = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    server = environment(tmp_path / "server", server_wheel, client_wheel)
    # Dependencies are borrowed, as installing them takes minutes. The checkout is not: a borrowed
    # folder's .pth files are ignored.
    (site_of(server) / "borrowed.pth").write_text(f"{SITE}\n")
    imported = run(
        [str(server / "python"), "-c", "import trading_intents; print(trading_intents.__file__)"],
        folder,
    )
    assert imported.startswith(str(tmp_path / "server"))
    client = environment(tmp_path / "client", client_wheel)
    borrow(client, OF_CLIENT)
    assert "No broken requirements" in run([*pip_of(client), "check"], elsewhere)
    with serving(server, folder) as url:
        key = json.loads((folder / ".data" / "demo.json").read_text())["api_key"]
        settings = {"TRADING_INTENTS_URL": url, "TRADING_INTENTS_API_KEY": key}
        assert (
            run([str(client / "python"), "-W", "error", "-c", ORDER], elsewhere, **settings)
            == "3\n"
        )
        borrow(client, OF_COMMANDS)  # the extra `cli`
        assert "No broken requirements" in run([*pip_of(client), "check"], elsewhere)
        assert "AAPL" in run(
            [str(client / "trading-intents"), "quote", "AAPL"], elsewhere, **settings
        )
        assert "Operating" not in run([str(client / "trading-intents"), "--help"], elsewhere)
        assert run(
            [str(server / "trading-intents"), "buy", "AAPL", "2", "--wait"], folder
        ).startswith("BUY 2 AAPL: FILLED")


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_wheels_install_with_what_they_declare(dist: Path, tmp_path: Path) -> None:
    """From the package index, which takes minutes."""
    pins = [
        line.removesuffix(" \\")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line
    ]
    (tmp_path / "pins").write_text("\n".join(pins))
    venv.create(tmp_path / "fresh", symlinks=True)
    pip = [*pip_of(tmp_path / "fresh" / "bin"), "install", "-q", "--find-links", str(dist)]
    command = [*pip, "-c", str(tmp_path / "pins"), "trading-intents"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=800)
    with serving(tmp_path / "fresh" / "bin", tmp_path):
        assert run(
            [str(tmp_path / "fresh" / "bin" / "trading-intents"), "buy", "AAPL", "1", "--wait"],
            tmp_path,
        )
