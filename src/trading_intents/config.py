"""Every setting: its meaning, special values and default, declared once; read from
TRADING_INTENTS_* variables."""

import dataclasses
import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret
from trading_intents.trading import FrozenStruct

PREFIX = "TRADING_INTENTS_"
# The client's and the trader's commands': no settings of the server.
CLIENT_VARIABLES = ("URL", "API_KEY", "ACCOUNT", "WEBHOOK_SECRET")
ROLES = ("api", "stream", "worker")
LOCAL_PROVIDER = "local"
MAX_WORKERS = 32
MAX_DEFAULT_WORKERS = 8
CORES_PER_WORKER = 4
# No part starts with a dot: `..` would lead out of the prefix.
VAULT_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
# Becomes a part of the console's Content-Security-Policy, where a space, a semicolon or a star has
# a meaning.
ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")
PLAIN_URL = "a plain https URL, or http on a loopback address"
ISSUER = re.compile(rf"{ORIGIN.pattern}(?:/[!-~]*)?")


class Rate(FrozenStruct):
    """A token bucket's shape, written `200/400`: tokens a second, and how many can be saved up."""

    per_second: int
    burst: int


def _setting(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


def _bounded(default: int, max_value: int, meaning: str) -> Any:
    return field(
        default=default,
        metadata={"meaning": f"{meaning}, 1 to {max_value}.", "max_value": max_value},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data_dir: Path = _setting(
        Path(".data"), "Folder of the embedded PostgreSQL, its passwords and our keys."
    )
    database_url: Secret = _setting(
        Secret(""), "PostgreSQL to use (15 or later). Empty: the embedded one."
    )
    database_worker_url: Secret = _setting(
        Secret(""),
        "Login of background work, which may read sealed secrets. Empty: as DATABASE_URL.",
    )
    database_owner_url: Secret = _setting(
        Secret(""), "Login that may migrate. Empty: as DATABASE_URL."
    )
    database_listen_url: Secret = _setting(
        Secret(""),
        "A direct connection for LISTEN and NOTIFY, when a pooler is between. Empty: as "
        "DATABASE_URL.",
    )
    database_pool_size: int = _bounded(
        10, 100, "Connections a process may hold for requests, the stream and background work each"
    )
    postgres_bin: str = _setting(
        "", "Folder of PostgreSQL binaries. Empty: the installed wheel, else pg_config's."
    )
    http_host: str = _setting("127.0.0.1", "Address that REST listens on.")
    http_port: int = _setting(8080, "Port of REST. 0: any free one, logged at the start.")
    http_connections_per_address: int = _setting(
        0,
        "HTTP connections of one address, TRUSTED_PROXIES exempt. 0: half of what the process "
        "takes.",
    )
    http_tls_certificate_file: str = _setting(
        "", "PEM file of REST's certificate and those that signed it. Empty: no TLS."
    )
    http_tls_key_file: str = _setting("", "PEM file of its private key.")
    grpc_host: str = _setting("127.0.0.1", "Address that the gRPC stream listens on.")
    grpc_port: int = _setting(5051, "Its port. 0: any free one, logged at the start.")
    max_streams: int = _bounded(
        10_000, 100_000, "Streams that a process holds open, gRPC and SSE together"
    )
    streams_per_organization: int = _setting(
        0,
        "How many of them one organization may have, both environments together. 0: a quarter "
        "of MAX_STREAMS.",
    )
    stream_cursor_days: int = _bounded(
        7, 3_650, "Days for which a stream's cursor leads on; an older one primes again"
    )
    tls_certificate_file: str = _setting(
        "", "PEM file of the gRPC port's certificate and those that signed it. Empty: no TLS."
    )
    tls_key_file: str = _setting("", "PEM file of its private key.")
    roles: tuple[str, ...] = _setting(
        ROLES, "What this process does: any of api, stream, worker, comma separated."
    )
    workers: str = _setting(
        "",
        f"Processes for the role worker, if there are other roles, 0 to {MAX_WORKERS}. 0: all "
        "roles in one process. "
        f"Empty: a quarter of the cores, 1 to {MAX_DEFAULT_WORKERS}.",
    )
    internal_organizations: tuple[str, ...] = _setting(
        (),
        "Organizations whose admins read the outbox health: ids or external ids, comma separated.",
    )
    execution_max_age_millis: int = _bounded(
        30_000, 604_800_000, "A CREATE or REPLACE that has waited longer is not sent to the broker"
    )
    execution_reconcile_seconds: int = _bounded(
        300, 86_400, "How often an account's open orders are compared with its broker's"
    )
    outbox_attempt_limit: int = _bounded(10, 100, "Attempts after which an outbox row fails")
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        "Addresses or networks whose X-Forwarded-For is believed, comma separated. Empty: "
        "nobody's.",
    )
    rate_limit_submits: Rate = _setting(
        Rate(200, 400), "CREATE and REPLACE a second / burst, per caller and process."
    )
    rate_limit_cancels: Rate = _setting(Rate(200, 400), "CANCELs, likewise.")
    rate_limit_writes: Rate = _setting(Rate(200, 400), "Other writes, likewise.")
    rate_limit_reads: Rate = _setting(
        Rate(200, 400), "Reads, likewise; and messages within streams."
    )
    rate_limit_failures: Rate = _setting(
        Rate(200, 400), "Failed credentials, per address and process."
    )
    rate_limit_organization_submits: Rate = _setting(
        Rate(1000, 2000),
        "CREATE and REPLACE of all API keys of an organization and environment, per process.",
    )
    rate_limit_organization_cancels: Rate = _setting(Rate(1000, 2000), "CANCELs, likewise.")
    rate_limit_organization_writes: Rate = _setting(
        Rate(1000, 2000), "Other writes, likewise; and of all its users together."
    )
    rate_limit_organization_reads: Rate = _setting(
        Rate(1000, 2000), "Reads, likewise; and of all its users together."
    )
    identity_provider_name: str = _setting(
        LOCAL_PROVIDER,
        "The identity provider's name in paths and records. local: the embedded one.",
    )
    identity_issuer: str = _setting(
        "", "The `iss` of acceptable tokens. Empty (local only): that of the data folder."
    )
    identity_jwks_url: str = _setting(
        "", "Where an external provider serves its keys. https, or http on loopback."
    )
    identity_audience: str = _setting(
        "trading-intents",
        "The `aud` of acceptable tokens: this platform's own, never a client id, as id tokens "
        "have.",
    )
    identity_users_url: str = _setting(
        "", "An external provider's users: DELETE {url}/{subject} removes one."
    )
    identity_claim_organization: str = _setting(
        "organization",
        "External provider's claim for the active organization: a name or a dotted path.",
    )
    identity_claim_role: str = _setting(
        "role", "Its claim for the role in that organization, likewise."
    )
    identity_claim_scopes: str = _setting(
        "scope", "Its claim for scopes, likewise: a text with spaces, or an array."
    )
    identity_claim_kind: str = _setting(
        "kind", "Its claim that distinguishes service accounts from users."
    )
    identity_kind_service: str = _setting(
        "service", "The value of that claim that means a service account."
    )
    console_oidc_client_id: str = _setting(
        "",
        "Public client at the external provider as which users sign in to the console. Empty: "
        "they paste a token.",
    )
    console_oidc_scope: str = _setting(
        "openid", "Scopes that the console asks the provider for, with spaces between."
    )
    console_oidc_origins: tuple[str, ...] = _setting(
        (),
        "Origins of the provider beside its issuer's, such as its token endpoint's: "
        "https://host, comma separated.",
    )
    vault_key_file: str = _setting(
        "",
        "The embedded vault's master keys, made at first start. Empty: vault-keys.json in "
        "DATA_DIR.",
    )
    vault_master_keys: Secret = _setting(
        Secret(""),
        "Those keys themselves, in place of the file: 1:KEY,2:KEY, 32 bytes each in base64. "
        "The highest seals.",
    )
    vault_url: str = _setting(
        "", "OpenBao or HashiCorp Vault: https, or http on loopback. Empty: the embedded vault."
    )
    vault_token: Secret = _setting(Secret(""), "Its token.")
    vault_token_file: str = _setting(
        "", "File of its token, read for each request, in place of VAULT_TOKEN."
    )
    vault_mount: str = _setting("secret", "Its KV version 2 engine's mount.")
    vault_prefix: str = _setting(
        "trading-intents", "Path in that engine under which everything is kept."
    )
    vault_namespace: str = _setting("", "Its namespace. Empty: none.")
    vault_ca_file: str = _setting(
        "",
        "PEM file of the authorities that may have signed its certificate. Empty: the usual ones.",
    )
    reference_price_max_age_seconds: int = _setting(
        900, "How old a symbol's reference price may be."
    )
    log_level: str = _setting("info", "debug, info, warning or error.")
    # The variables with our prefix that are none of these, by their names without it: integrations
    # declare theirs.
    others: Mapping[str, Secret] = field(default_factory=dict)

    def count_workers(self) -> int:
        """Counts workers beside the process with the other roles; 0: there is one process, without
        a parent."""
        if not set(self.roles) > {"worker"}:
            return 0
        cores = len(os.sched_getaffinity(0))
        return int(self.workers or max(1, min(cores // CORES_PER_WORKER, MAX_DEFAULT_WORKERS)))

    @property
    def http_url(self) -> str:
        scheme = "https" if self.http_tls_certificate_file else "http"
        return f"{scheme}://{_address(self.http_host, self.http_port)}"

    @property
    def grpc_address(self) -> str:
        return _address(self.grpc_host, self.grpc_port)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def declared() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Settings) if "meaning" in f.metadata]


def names() -> dict[str, str]:
    return {PREFIX + f.name.upper(): f.metadata["meaning"] for f in declared()}


def load(environ: Mapping[str, str]) -> Settings:
    """Reads the settings; an invalid value is refused with the variable's name."""
    values: dict[str, Any] = {}
    for f in declared():
        variable = PREFIX + f.name.upper()
        text = environ.get(variable, "").strip()
        if text:
            try:
                values[f.name] = _parse(text, f.default)
            except ValueError as error:
                # From None, because the text may be a secret and must not be in a traceback.
                raise StartupRefused(f"{variable}: {error}") from None
    others = {}
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX)
        is_known = variable in names() or name in CLIENT_VARIABLES
        if name != variable and not is_known and text.strip():
            others[name] = Secret(text.strip())
    settings = Settings(**values, others=others)
    _check(settings)
    return settings


def unknown(environ: Mapping[str, str], integrations: Collection[str] = ()) -> dict[str, str]:
    """Finds variables with our prefix that are neither settings nor an integration's, each with the
    most similar setting (or an empty text)."""
    # Compared without the prefix, which would make any two look alike.
    known = [*CLIENT_VARIABLES]
    known += [variable.removeprefix(PREFIX) for variable in names()]
    strangers = {}
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known and owner_of(name, integrations) is None:
            strangers[variable] = nearest(name, known)
    return strangers


def nearest(name: str, known: Iterable[str]) -> str:
    """The variable of the most similar setting, or an empty text."""
    near = difflib.get_close_matches(name, list(known), 1)
    return PREFIX + near[0] if near else ""


def owner_of(name: str, integrations: Iterable[str]) -> str | None:
    """The integration whose name, the longest one, the name of a setting begins with."""
    found = [each for each in integrations if name.startswith(f"{each.upper()}_")]
    return max(found, key=len, default=None)


def _parse(text: str, default: Any) -> Any:
    match default:
        case int():
            if not text.isascii() or not text.isdigit():
                raise ValueError("must be a whole number")
            return int(text)
        case Path():
            return Path(text)
        case Secret():
            return Secret(text)
        case Rate():
            return _parse_rate(text)
        case tuple():
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case _:
            return text


def _parse_rate(text: str) -> Rate:
    per_second, _, burst = text.partition("/")
    if not (per_second.isascii() and per_second.isdigit() and burst.isascii() and burst.isdigit()):
        raise ValueError("must look like 200/400: tokens a second / burst")
    if not 1 <= int(per_second) <= 1_000_000 or not 1 <= int(burst) <= 1_000_000:
        raise ValueError("both numbers must be 1 to 1,000,000")
    return Rate(int(per_second), int(burst))


def _check(settings: Settings) -> None:
    for f in declared():
        max_value = f.metadata.get("max_value")
        if max_value:
            is_within = 1 <= getattr(settings, f.name) <= max_value
            _require(is_within, f.name, f"1 to {max_value}")
    known_roles = bool(settings.roles) and set(settings.roles) <= set(ROLES)
    _require(known_roles, "roles", f"any of {', '.join(ROLES)}, comma separated")
    is_number = bool(re.fullmatch("[0-9]{0,2}", settings.workers))
    has_workers = is_number and int(settings.workers or 0) <= MAX_WORKERS
    _require(has_workers, "workers", f"0 to {MAX_WORKERS}")
    for name in ("http_port", "grpc_port"):
        _require(getattr(settings, name) <= 65535, name, "at most 65535")
    for port in ("http_tls", "tls"):
        certificate = f"{port}_certificate_file"
        key = f"{port}_key_file"
        is_pair = bool(getattr(settings, certificate)) == bool(getattr(settings, key))
        _require(is_pair, certificate, f"together with {PREFIX}{key.upper()}, or neither")
    worker_alone = settings.database_worker_url and not settings.database_url
    text = f"only together with {PREFIX}DATABASE_URL"
    _require(not worker_alone, "database_worker_url", text)
    _check_identity(settings)
    if settings.vault_url:
        _check_vault(settings)
    else:
        _check_embedded_vault(settings)
    is_level = settings.log_level in ("debug", "info", "warning", "error")
    _require(is_level, "log_level", "debug, info, warning or error")


def _require(is_met: bool, setting: str, rule: str) -> None:
    if not is_met:
        raise StartupRefused(f"{PREFIX}{setting.upper()}: {rule}")


def _check_identity(settings: Settings) -> None:
    is_local = settings.identity_provider_name == LOCAL_PROVIDER
    external = f"only with an external {PREFIX}IDENTITY_PROVIDER_NAME"
    for name in ("identity_jwks_url", "identity_users_url"):
        url = getattr(settings, name)
        _require(not (is_local and url), name, external)
        is_safe = not url or _is_safe_url(url)
        _require(is_safe, name, "an https URL, or http on a loopback address")
    client_id = settings.console_oidc_client_id
    _require(not (is_local and client_id), "console_oidc_client_id", external)
    for origin in settings.console_oidc_origins:
        is_origin = _is_safe_url(origin) and bool(ORIGIN.fullmatch(origin))
        text = "https origins without a path, or http on loopback"
        _require(is_origin, "console_oidc_origins", text)
    if client_id:
        issuer = settings.identity_issuer
        is_issuer = _is_safe_url(issuer) and bool(ISSUER.fullmatch(issuer))
        text = "an https URL, or http on loopback, for users to sign in at"
        _require(is_issuer, "identity_issuer", text)
    text = "not the console's client id, or its id tokens would be taken"
    _require(client_id != settings.identity_audience, "identity_audience", text)
    for name in ("identity_issuer", "identity_jwks_url"):
        is_given = is_local or bool(getattr(settings, name))
        _require(is_given, name, "needed with an external identity provider")


def _check_embedded_vault(settings: Settings) -> None:
    has_both = settings.vault_key_file and settings.vault_master_keys
    _require(not has_both, "vault_master_keys", f"not together with {PREFIX}VAULT_KEY_FILE")
    for name in ("vault_token", "vault_token_file", "vault_namespace", "vault_ca_file"):
        _require(not getattr(settings, name), name, f"only with {PREFIX}VAULT_URL")


def _check_vault(settings: Settings) -> None:
    for name in ("vault_key_file", "vault_master_keys"):
        _require(not getattr(settings, name), name, f"not with {PREFIX}VAULT_URL")
    _require(is_plain_url(settings.vault_url), "vault_url", PLAIN_URL)
    has_one_token = bool(settings.vault_token) != bool(settings.vault_token_file)
    text = f"needed with {PREFIX}VAULT_URL, or VAULT_TOKEN_FILE, not both"
    _require(has_one_token, "vault_token", text)
    for name in ("vault_mount", "vault_prefix", "vault_namespace"):
        is_path = bool(VAULT_PATH.fullmatch(getattr(settings, name) or "none"))
        _require(is_path, name, "parts of A-Z a-z 0-9 . _ - with / between them")


def is_plain_url(text: str) -> bool:
    return _is_safe_url(text) and not set(text) & set("?#@")


def _is_safe_url(text: str) -> bool:
    """Others can read and change what goes over an open network: keys, tokens, orders."""
    try:
        # It reads it in the call as well: urllib would leave out line breaks and tabs.
        url = httpx.URL(text)
        host = url.host
        port = url.port
    except (httpx.InvalidURL, ValueError):
        return False
    loopback = host in ("127.0.0.1", "::1", "localhost")
    is_port = port is None or 1 <= port <= 65535
    return bool(host) and is_port and (url.scheme == "https" or (url.scheme == "http" and loopback))
