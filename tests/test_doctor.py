"""`trading-intents doctor` finds faults that would only show later, and `serve` refuses to start
with some of them."""

import json
import os
import pwd
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.accounts.marked_secrets import SECRETS
from tests.accounts.provisioned import DOCUMENT, settings_of
from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.open_folder import open_folder
from tests.platform import environment, run_command, serving
from trading_intents.cli import cli


@pytest.fixture
def above() -> Iterator[Path]:
    """A folder that others may enter and not write to."""
    with open_folder() as folder:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def doctor_as_another(environ: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output, for a user to whom root's folders are closed."""
    ours, theirs = os.pipe()
    CliRunner().invoke(cli, ["doctor"], env=environ)  # imports now what that user may not read
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
        done = CliRunner().invoke(cli, ["doctor"], env=environ)
        os.write(theirs, f"{done.output}{done.exception!r}".encode())
        os._exit(done.exit_code)
    os.close(theirs)
    with open(ours) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


@pytest.mark.parametrize("below", ["", "deeper"])
def test_doctor_names_a_data_folder_that_is_another_users(above: Path, below: str) -> None:
    above.chmod(0o755)
    folder = above / "data"
    folder.mkdir(mode=0o700)
    if os.geteuid() != 0:
        folder.chmod(0)
    code, said = doctor_as_another(environment(folder / below, {}))
    folder.chmod(0o700)
    assert code == 1, said
    assert [
        line
        for line in said.splitlines()
        if line.startswith("wrong   files") and str(folder) in line
    ], said
    assert [line for line in said.splitlines() if line.startswith("wrong   database")], said


def test_doctor_says_that_the_data_folder_cannot_be_made(above: Path) -> None:
    code, said = doctor_as_another(environment(above / "not" / "there", {}))
    assert code == 1, said
    (line,) = [line for line in said.splitlines() if line.startswith("wrong   files")]
    assert f"you may not make it: {above} is " in line


def test_doctor_finds_vault_keys_that_open_nothing(urls: Urls, tmp_path: Path) -> None:
    with serving(tmp_path, **settings_of(urls)) as platform:
        made = platform.apply(DOCUMENT)["organizations"][0]
        headers = {"x-api-key": made["api_keys"][0]["api_key"]}
        url = f"/v1/accounts/{made['accounts'][0]['id']}/credentials"
        stored = platform.client.post(url, json={"secrets": SECRETS}, headers=headers).json()
        assert (
            lines_of(platform.run("doctor").stdout)["vault"]
            == "ok: its keys open the stored secrets\n"
        )
        file = tmp_path / "vault-keys.json"
        keys = [
            key | {"key": b64encode(bytes(32)).decode()}
            for key in json.loads(file.read_text())["keys"]
        ]
        file.write_text(json.dumps({"keys": keys}))
        wrong = platform.run("doctor")
        assert wrong.returncode == 1
        assert "do not open 1 of the 1 newest secrets" in wrong.stdout
        assert stored["id"] in wrong.stdout
        file.unlink()
        gone = platform.run("doctor")
        assert gone.returncode == 1
        assert lines_of(gone.stdout)["vault"].startswith(
            f"wrong: secrets are stored, but no {file}"
        )
        assert not file.exists()


@pytest.mark.parametrize("setting", ["DATABASE_URL", "DATABASE_WORKER_URL"])
def test_a_superusers_login_is_refused_with_the_role_to_make(
    urls: Urls, tmp_path: Path, setting: str
) -> None:
    settings = settings_of(urls) | {setting: urls.owner.reveal()}
    environ = environment(tmp_path / "data", settings)
    for command in (["serve"], ["audit", "verify"]):
        refused = run_command(environ, *command)
        assert refused.returncode == 1
        assert f"the login postgres of TRADING_INTENTS_{setting} is a superuser" in refused.stderr
        assert "CREATE ROLE trading_intents LOGIN" in refused.stderr
    done = run_command(environ, "doctor")
    assert done.returncode == 1
    assert lines_of(done.stdout)["logins"].startswith(
        f"wrong: the login postgres of TRADING_INTENTS_{setting} is"
    )


def test_doctor_shows_no_part_of_a_workers_password(urls: Urls, tmp_path: Path) -> None:
    assert run_command(environment(tmp_path / "data", settings_of(urls)), "migrate").returncode == 0
    for url, shown in (
        ("postgresql://someone:Marked/Secret@127.0.0.1/x", "the database URL cannot be read"),
        ("postgresql://someone:x?Marked@127.0.0.1/x", "the database URL cannot be read"),
        ("postgresql://someone:Marked@127.0.0.1:1/x", "the database cannot be reached"),
    ):
        settings = settings_of(urls) | {"DATABASE_WORKER_URL": url}
        done = run_command(environment(tmp_path / "data", settings), "doctor")
        assert done.returncode == 1, url
        assert "Marked" not in done.stdout + done.stderr
        assert lines_of(done.stdout)["logins"].startswith(f"wrong: {shown}"), url
