"""Settings are read from the environment strictly, and a value that makes no sense is named."""

import dataclasses
from pathlib import Path

import pytest

from trading_intents import config
from trading_intents.config import Rate, Settings
from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret

MARKER = "s3cret-marker"
EXTERNAL = {
    "IDENTITY_PROVIDER_NAME": "acme",
    "IDENTITY_ISSUER": "https://id.example",
    "IDENTITY_JWKS_URL": "https://id.example/keys",
}


def load(**settings: str) -> Settings:
    return config.load({config.PREFIX + name: value for name, value in settings.items()})


def refusal(**settings: str) -> str:
    with pytest.raises(StartupRefused) as caught:
        load(**settings)
    assert caught.value.__cause__ is None
    return caught.value.detail


GOOD: list[tuple[str, str, object]] = [
    ("DATA_DIR", "/srv/data", Path("/srv/data")),
    ("DATA_DIR", "with space/ä", Path("with space/ä")),
    ("DATABASE_URL", "postgresql://a:b@c/d", Secret("postgresql://a:b@c/d")),
    ("DATABASE_POOL_SIZE", "1", 1),
    ("DATABASE_POOL_SIZE", "100", 100),
    ("HTTP_HOST", "::1", "::1"),
    ("HTTP_PORT", "0", 0),
    ("HTTP_PORT", "65535", 65535),
    ("HTTP_PORT", " 8081 ", 8081),
    ("ROLES", "worker", ("worker",)),
    ("ROLES", " api , stream ,", ("api", "stream")),
    ("INTERNAL_ORGANIZATIONS", "org_a,org_b", ("org_a", "org_b")),
    ("TRUSTED_PROXIES", "10.0.0.0/8, 127.0.0.1", ("10.0.0.0/8", "127.0.0.1")),
    ("RATE_LIMIT_READS", "1/1", Rate(1, 1)),
    ("RATE_LIMIT_FAILURES", "1000000/1000000", Rate(1_000_000, 1_000_000)),
    ("IDENTITY_AUDIENCE", "orders", "orders"),
    ("LOG_LEVEL", "debug", "debug"),
]

BAD = [
    ("DATABASE_POOL_SIZE", "0"),
    ("DATABASE_POOL_SIZE", "101"),
    ("HTTP_PORT", "65536"),
    ("HTTP_PORT", "-1"),
    ("HTTP_PORT", "+80"),
    ("HTTP_PORT", "80.0"),
    ("HTTP_PORT", "8_080"),
    ("HTTP_PORT", "٨٠"),
    ("HTTP_PORT", "9" * 5000),
    ("ROLES", "api,boss"),
    ("ROLES", ","),
    ("RATE_LIMIT_READS", "200"),
    ("RATE_LIMIT_READS", "200/"),
    ("RATE_LIMIT_READS", "0/1"),
    ("RATE_LIMIT_READS", "1/0"),
    ("RATE_LIMIT_READS", "1/1000001"),
    ("RATE_LIMIT_READS", "1.5/2"),
    ("RATE_LIMIT_WRITES", "1/2/3"),
    ("RATE_LIMIT_SUBMITS", "many/few"),
    ("IDENTITY_JWKS_URL", "https://id.example/keys"),
    ("IDENTITY_USERS_URL", "https://id.example/users"),
    ("LOG_LEVEL", "INFO"),
    ("LOG_LEVEL", "loud"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_good_value_is_taken(name: str, text: str, value: object) -> None:
    assert getattr(load(**{name: text}), name.lower()) == value


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_bad_value_is_refused_by_its_name(name: str, text: str) -> None:
    assert refusal(**{name: text}).startswith(config.PREFIX + name)


@pytest.mark.parametrize("name", [f.name.upper() for f in config.declared()])
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_means_the_default(name: str, text: str) -> None:
    assert load(**{name: text}) == Settings()


def test_every_setting_says_what_it_means() -> None:
    assert all(meaning.endswith(".") for meaning in config.names().values())
    assert len(config.names()) == len(dataclasses.fields(Settings)) - 1  # `others` is none


@pytest.mark.parametrize("missing", ["IDENTITY_ISSUER", "IDENTITY_JWKS_URL"])
def test_an_external_provider_needs_its_issuer_and_keys(missing: str) -> None:
    assert load(**EXTERNAL).identity_provider_name == "acme"
    assert refusal(**(EXTERNAL | {missing: ""})).startswith(config.PREFIX + missing)


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "ftp://127.0.0.1/keys",
        "https://",
        "id.example/keys",
        "file:///etc/keys",
        "http://[::1",
        "http://127.0.0.1.example/keys",
        "http://127.0.0.1@id.example/keys",
        "https://id.example/ke\tys",
        "https://id.example/\r\nkeys",
        "https://id.example/\x01",
        "https://999.1.1.1/keys",
        "https://xn--a.example/keys",
        "https://id.example:0/keys",
        "https://id.example:65536/keys",
        "https://id.example:x/keys",
    ],
)
def test_keys_are_never_fetched_over_a_wire_that_others_write_to(url: str) -> None:
    assert "https" in refusal(**(EXTERNAL | {"IDENTITY_JWKS_URL": url}))
    assert "https" in refusal(**(EXTERNAL | {"IDENTITY_USERS_URL": url}))


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_plain_http_is_enough_on_loopback(host: str) -> None:
    url = f"http://{host}/keys"
    assert load(**(EXTERNAL | {"IDENTITY_JWKS_URL": url})).identity_jwks_url == url


@pytest.mark.parametrize(
    "host",
    [
        "id.example;script-src *",
        "id.example *",
        "id.example 'unsafe-eval'",
        "id.example\r\nset-cookie:1",
        "id.example\x0bx",
        "id.example\x00",
        "id.example,https:",
        "user:password@id.example",
        "id.example\\x",
        'id.example"x',
        "*.example",
        "*",
        "ä.example",
    ],
)
def test_a_hostile_origin_cannot_change_the_consoles_policy(host: str) -> None:
    console = EXTERNAL | {"CONSOLE_OIDC_CLIENT_ID": "console"}
    for issuer in (f"https://{host}", f"https://{host}/realm"):
        assert refusal(**(console | {"IDENTITY_ISSUER": issuer})).startswith(
            "TRADING_INTENTS_IDENTITY_ISSUER"
        )
    with pytest.raises(StartupRefused, match="CONSOLE_OIDC_ORIGINS"):
        load(**(console | {"CONSOLE_OIDC_ORIGINS": f"https://{host}"}))


@pytest.mark.parametrize(
    "origin", ["https://id.example", "https://id-2.example:8443", "http://[::1]:1"]
)
def test_a_plain_origin_is_taken_for_the_consoles_policy(origin: str) -> None:
    console = EXTERNAL | {"CONSOLE_OIDC_CLIENT_ID": "console", "CONSOLE_OIDC_ORIGINS": origin}
    for issuer in (origin, f"{origin}/", f"{origin}/realms/acme"):
        assert load(**(console | {"IDENTITY_ISSUER": issuer})).console_oidc_origins == (origin,)


def test_the_consoles_id_tokens_cannot_become_acceptable() -> None:
    console = EXTERNAL | {"CONSOLE_OIDC_CLIENT_ID": "console", "IDENTITY_AUDIENCE": "console"}
    assert refusal(**console).startswith("TRADING_INTENTS_IDENTITY_AUDIENCE")


def test_a_secret_setting_is_never_shown() -> None:
    url = f"postgresql://user:{MARKER}@host/db"
    settings = load(DATABASE_URL=url, DATABASE_OWNER_URL=url)
    assert MARKER not in repr(settings)
    assert MARKER not in str(dataclasses.asdict(settings))
    assert settings.database_url.reveal() == url


@pytest.mark.parametrize(
    "name", ["HTTP_PORT", "RATE_LIMIT_READS", "ROLES", "LOG_LEVEL", "IDENTITY_JWKS_URL"]
)
def test_a_refusal_never_repeats_the_value(name: str) -> None:
    assert MARKER not in refusal(**{name: MARKER})


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("TRADING_INTENTS_HTTP_PROT", "TRADING_INTENTS_HTTP_PORT"),
        ("TRADING_INTENTS_DATABSE_URL", "TRADING_INTENTS_DATABASE_URL"),
        ("TRADING_INTENTS_RATE_LIMIT_READ", "TRADING_INTENTS_RATE_LIMIT_READS"),
    ],
)
def test_a_mistyped_variable_is_logged_with_the_nearest_one(variable: str, near: str) -> None:
    assert config.unknown({variable: "1", "PATH": "/bin", "HTTP_PROT": "1"}) == {variable: near}


def test_known_variables_are_no_strangers() -> None:
    assert config.unknown(dict.fromkeys(config.names(), "")) == {}


def test_what_integrations_get_is_neither_ours_nor_the_clients() -> None:
    settings = load(HTTP_PORT="1", API_KEY=MARKER, ACME_TOKEN=f" {MARKER} ", ACME_URL=" ")
    assert settings.others == {"ACME_TOKEN": Secret(MARKER)}
    assert MARKER not in repr(settings)
