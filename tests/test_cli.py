"""The command line, as an operator types it: what it prints, what it changes, how it fails."""

import json
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from typer.testing import CliRunner, Result

from tests.conftest import Urls
from tests.doctor_lines import lines_of
from tests.platform import Platform, environment, run_command
from trading_intents.cli import NOTHING_HERE, cli
from trading_intents_client.cli import program

pytest_plugins = ("tests.started_dirs",)

MARKER = "s3cret-marker"


def commands_below(command: object, *path: str) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands_below(child, *path, name)


def invoke(environ: Mapping[str, str], *arguments: str, stdin: str = "") -> Result:
    """A command within this process: a fifth of the time, for what is refused early."""
    return CliRunner().invoke(cli, arguments, input=stdin, env=environ)


ALL = [
    (),
    *(path for one in (program.cli, cli) for path in commands_below(typer.main.get_command(one))),
]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(program.cli, [*command, "--help"])
    assert done.exit_code == 0
    assert " ".join(("Usage:", "root", *command)) in re.sub(r"\s+", " ", done.output)
    assert re.search(r"[A-Z][^│╭╰]+\.\s", done.output.split("Usage:")[1])


def test_no_command_shows_the_help_and_an_unknown_one_is_refused() -> None:
    assert "Usage:" in CliRunner().invoke(program.cli, []).output
    assert CliRunner().invoke(program.cli, ["sevre"]).exit_code == 2


@pytest.mark.slow
def test_migrate_applies_once_and_doctor_then_finds_all_well(tmp_path: Path) -> None:
    environ = environment(tmp_path / "data", {})
    before = lines_of(invoke(environ, "doctor").stdout)
    assert "does not exist yet" in before["files"]
    assert not (tmp_path / "data").exists()
    first = run_command(environ, "migrate")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == "applied 0001_baseline.sql"
    assert all(line.startswith("applied ") for line in first.stdout.splitlines())
    second = run_command(environ, "migrate")
    assert (second.returncode, second.stdout, second.stderr) == (0, "nothing to do\n", "")
    healthy = run_command(environ, "doctor")
    assert healthy.returncode == 0
    assert {line.split()[0] for line in healthy.stdout.splitlines()} == {"ok"}
    assert lines_of(healthy.stdout).keys() == {
        "settings",
        "files",
        "disk",
        "port",
        "database",
        "clock",
        "schema",
        "vault",
    }


COMMANDS_THAT_MAKE_NOTHING = [
    ("admin", "apply", "-"),
    ("token", "--user", "demo"),
    ("vault", "rotate"),
    ("outbox", "list"),
    ("outbox", "retry", "1", "--reason", "again"),
    ("outbox", "drop", "1", "--reason", "never"),
    ("audit", "verify"),
    ("audit", "anchor"),
]


@pytest.mark.parametrize("command", COMMANDS_THAT_MAKE_NOTHING, ids=" ".join)
def test_a_command_in_the_wrong_folder_says_so_and_makes_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = tmp_path / "data"
    done = invoke(environment(folder, {}), *command, stdin="{}")
    assert (done.exit_code, done.stdout) == (NOTHING_HERE, "")
    assert f"no database in {folder}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not folder.exists()


def test_a_command_makes_no_tables_in_an_external_database(tmp_path: Path, postgres: Urls) -> None:
    empty = postgres.of("postgres")
    settings = {"DATABASE_URL": empty.login.reveal(), "DATABASE_OWNER_URL": empty.owner.reveal()}
    done = run_command(environment(tmp_path / "data", settings), "audit", "verify")
    assert (done.returncode, done.stdout) == (NOTHING_HERE, "")
    assert "trading-intents migrate" in done.stderr
    with psycopg.connect(empty.owner.reveal()) as owner:
        assert owner.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone() == (0,)


def test_no_key_is_made_in_a_folder_beside_an_external_database(tmp_path: Path, urls: Urls) -> None:
    settings = {"DATABASE_URL": urls.login.reveal(), "DATABASE_OWNER_URL": urls.owner.reveal()}
    document = {"organizations": [{"external_id": "o", "users": [{"external_id": "ada"}]}]}
    environ = environment(tmp_path / "elsewhere", settings)
    assert run_command(environ, "admin", "apply", "-", stdin=json.dumps(document)).returncode == 0
    for command, file in (
        (("token", "--user", "ada"), "identity-key.pem"),
        (("vault", "rotate"), "vault-keys.json"),
    ):
        done = run_command(environ, *command)
        assert (done.returncode, done.stdout) == (NOTHING_HERE, "")
        assert file in done.stderr
        assert str(tmp_path / "elsewhere") in done.stderr
        assert not (tmp_path / "elsewhere" / file).exists()


def test_doctor_names_a_key_file_that_others_can_read(platform: Platform) -> None:
    file = Path(platform.environ["TRADING_INTENTS_DATA_DIR"], "identity-key.pem")
    file.chmod(0o644)
    try:
        done = platform.run("doctor")
        refused = invoke(platform.environ, "token", "--user", "demo")
    finally:
        file.chmod(0o600)
    assert done.returncode == 1
    assert lines_of(done.stdout)["files"].startswith("wrong: ")
    assert f"chmod go-rwx {file}" in done.stdout
    assert refused.exit_code == 1
    assert "chmod 600" in refused.stderr


@pytest.mark.slow
def test_doctor_warns_of_a_taken_port_and_of_settings_that_mean_nothing(platform: Platform) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        changed = {"TRADING_INTENTS_HTTP_PORT": port, "TRADING_INTENTS_HTTP_HOTS": "::1"}
        done = run_command(platform.environ | changed, "doctor")
    said = lines_of(done.stdout)
    assert done.returncode == 0
    assert said["port"].startswith(f"warning: cannot listen on 127.0.0.1 port {port}")
    assert said["settings"].startswith(
        "warning: TRADING_INTENTS_HTTP_HOTS means nothing; did you mean"
    )


def test_doctor_does_not_warn_of_ports_that_its_own_platform_holds(platform: Platform) -> None:
    ports = {
        "HTTP_PORT": platform.url.rpartition(":")[2],
        "GRPC_PORT": platform.grpc.rpartition(":")[2],
    }
    done = run_command(
        platform.environ | {f"TRADING_INTENTS_{name}": port for name, port in ports.items()},
        "doctor",
    )
    said = lines_of(done.stdout)["port"]
    assert said.count("is held by this platform") == 2
    assert "warning" not in said


def test_doctor_says_that_a_database_cannot_be_reached(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"postgresql://user:{MARKER}@127.0.0.1:{closed.getsockname()[1]}/db"
        done = run_command(environment(tmp_path / "data", {"DATABASE_URL": url}), "doctor")
    assert done.returncode == 1
    assert lines_of(done.stdout)["database"].startswith("wrong: the database cannot be reached")
    assert MARKER not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


DOCUMENT: dict[str, Any] = {
    "organizations": [
        {
            "external_id": "org_cli",
            "name": "Command line",
            "entitlements": ["trading_live", "controls_premium"],
            "users": [{"external_id": "ada", "role": "admin"}, {"external_id": "bob"}],
            "accounts": [{"name": "sim", "broker": "paper", "environment": "paper"}],
            "api_keys": [
                {
                    "name": "bot",
                    "environment": "paper",
                    "permissions": ["intent:read", "intent:edit"],
                }
            ],
        }
    ],
    "service_accounts": [{"client_id": "cli_reporter", "scopes": ["intent:read"]}],
}


def secrets_of(answer: dict[str, Any]) -> list[str]:
    keys = [key for organization in answer["organizations"] for key in organization["api_keys"]]
    return [
        item[name]
        for name in ("api_key", "client_secret")
        for item in keys + answer["service_accounts"]
        if name in item
    ]


def without_secrets(answer: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(answer)
    for secret in secrets_of(answer):
        text = re.sub(rf', "(api_key|client_secret)": "{secret}"', "", text)
    stripped: dict[str, Any] = json.loads(text)
    return stripped


def test_apply_makes_what_the_document_says_once(platform: Platform) -> None:
    first = platform.apply(DOCUMENT)
    (made,) = first["organizations"]
    assert (made["external_id"], made["name"], made["disabled"]) == (
        "org_cli",
        "Command line",
        False,
    )
    assert [(user["external_id"], user["role"]) for user in made["users"]] == [
        ("ada", "admin"),
        ("bob", "member"),
    ]
    key, client_secret = secrets_of(first)
    validated = platform.client.post("/api/v1/auth/api-key/validate", json={"api_key": key}).json()
    assert (validated["id"], validated["organization_id"]) == (
        made["api_keys"][0]["id"],
        made["id"],
    )
    form = {
        "grant_type": "client_credentials",
        "client_id": "cli_reporter",
        "client_secret": client_secret,
    }
    assert platform.client.post("/oauth/token", data=form).status_code == 200

    again = platform.apply(DOCUMENT)
    assert secrets_of(again) == []
    assert again == without_secrets(first)

    only_named = {
        "organizations": [
            {
                "external_id": "org_cli",
                "disabled": True,
                "api_keys": [{"name": "bot", "environment": "paper"}],
            }
        ],
        "service_accounts": [{"client_id": "cli_reporter", "disabled": True}],
    }
    changed = platform.apply(only_named)
    (still,) = changed["organizations"]
    assert still["disabled"] is True
    assert (still["name"], still["entitlements"]) == (made["name"], made["entitlements"])
    assert still["api_keys"] == without_secrets(first)["organizations"][0]["api_keys"]
    assert changed["service_accounts"] == [
        {"client_id": "cli_reporter", "scopes": ["intent:read"], "disabled": True}
    ]
    assert (
        platform.client.post("/api/v1/auth/api-key/validate", json={"api_key": key}).json()[
            "disabled"
        ]
        is True
    )
    assert platform.client.post("/oauth/token", data=form).json()["error"] == "invalid_client"


BAD_DOCUMENTS = [
    (
        '{"organizations": [{"external_id": "org_bad"}, {"external_id": "x", "colour": 1}]}',
        "/organizations/1/colour",
    ),
    ('{"organizations": [{"external_id": "org_bad", "external_id": "y"}]}', "a key is repeated"),
    (
        '{"organizations": [{"external_id": "org_bad", "api_keys": '
        '[{"name": "k", "environment": "paper", "permissions": ["intent:read", "all"]}]}]}',
        "/organizations/0/api_keys/0/permissions/1",
    ),
    (
        (
            '{"organizations": [{"external_id": "org_bad", "users": [{"external_id": "u", "role": '
            '"boss"}]}]}'
        ),
        "/users/0/role",
    ),
    ('{"organizations": [{"external_id": "org_bad"}', "not JSON"),
    ('{"service_accounts": [{"client_id": "a\\u0000"}]}', "/service_accounts/0/client_id"),
    ('{"\\u001b[2J\\u009b31mcolour\\u202e": 1}', "/?[2J?31mcolour?: unknown field"),
]


@pytest.mark.parametrize(("document", "said"), BAD_DOCUMENTS)
def test_a_document_with_a_mistake_is_refused_and_names_it(
    platform: Platform, document: str, said: str
) -> None:
    done = invoke(platform.environ, "admin", "apply", "-", stdin=document)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_of_a_refused_document_is_written(platform: Platform) -> None:
    # That there is no such broker is found out only after the user was written.
    account = {"name": "sim", "broker": "nobody", "environment": "paper"}
    document = {
        "organizations": [
            {"external_id": "org_bad", "users": [{"external_id": "eve"}], "accounts": [account]}
        ]
    }
    done = platform.run("admin", "apply", "-", stdin=json.dumps(document))
    assert (done.returncode, done.stdout) == (1, "")
    assert "no such broker" in done.stderr
    assert "no user eve" in invoke(platform.environ, "token", "--user", "eve").stderr


def test_apply_reads_a_file_and_refuses_one_that_is_not_there(
    platform: Platform, tmp_path: Path
) -> None:
    file = tmp_path / "document.json"
    file.write_text("{}")
    done = platform.run("admin", "apply", str(file))
    assert json.loads(done.stdout) == {"organizations": [], "service_accounts": []}
    for unreadable in (tmp_path / "none.json", tmp_path):
        refused = invoke(platform.environ, "admin", "apply", str(unreadable))
        assert refused.exit_code == 1
        assert f"{unreadable}: " in refused.stderr


def test_a_token_is_for_a_known_user_and_a_members_organization(platform: Platform) -> None:
    bearer = {"authorization": f"Bearer {platform.token('demo', 'demo')}"}
    assert platform.client.get("/v1/api-keys", headers=bearer).status_code == 200
    stranger = invoke(platform.environ, "token", "--user", "nobody")
    assert (stranger.exit_code, stranger.stdout) == (1, "")
    assert "no user nobody" in stranger.stderr
    outsider = invoke(platform.environ, "token", "--user", "demo", "--organization", "elsewhere")
    assert (outsider.exit_code, outsider.stdout) == (1, "")
    assert "demo is no member of an organization elsewhere" in outsider.stderr
