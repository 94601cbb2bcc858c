"""The console over HTTP: its files and settings, what a credential may call, and the exchange of a
demo link."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from trading_intents.clock import rfc3339
from trading_intents.config import LOCAL_PROVIDER, Settings
from trading_intents.console.demo import DEMO, is_loopback, read_demo_key, redeem_code
from trading_intents.errors import Forbidden, NotFound, Unauthorized
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import ApiKeyPrincipal, ServicePrincipal, UserPrincipal
from trading_intents.identity.provider import TOKEN_SECONDS
from trading_intents.identity.service import TokenIssuer
from trading_intents.trading import Environment
from trading_intents.web.description.static import HTML, MEDIA, StaticFile, browser_headers
from trading_intents.web.request import NO_STORE, Answer, Request, answer_json
from trading_intents.web.routes import Operation, Route, Tag

PAGE = "index.html"
MAX_CODE_BYTES = 1024
# Headers that a proxy adds: a request that came through one is not from this machine, whatever its
# other headers say.
FORWARDING_HEADERS = (
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
)


class ConsoleSettings(msgspec.Struct):
    """The issuer at which users sign in; `client_id` is null where nobody does so by OpenID
    Connect."""

    issuer: str
    client_id: str | None
    scope: str
    audience: str
    has_demo_links: bool


class CallerDescription(msgspec.Struct, kw_only=True):
    principal_type: str
    principal_id: str
    organization_id: str | None
    organization_name: str | None
    environment: Environment | None
    role: str | None
    expires_at: str | None
    policies: list[str]


class DemoCode(msgspec.Struct, forbid_unknown_fields=True):
    code: str


class DemoSession(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: int
    api_key: str


def console_routes(
    gates: Mapping[str, Gate], settings: Settings, issuer: TokenIssuer | None
) -> tuple[Route, ...]:
    """`issuer` is the embedded provider's; links into the demo exist with it and the embedded
    database, on loopback."""
    gate = gates["public"]
    files = _load_files(settings)
    has_demo_links = (
        issuer is not None and is_loopback(settings.http_host) and not settings.database_url
    )
    shown = ConsoleSettings(
        settings.identity_issuer,
        settings.console_oidc_client_id or None,
        settings.console_oidc_scope,
        settings.identity_audience,
        has_demo_links,
    )

    # An issuer brings the user back with a query.
    @Operation(tag=Tag.CONSOLE, answer_media=HTML, any_query=True)
    async def get_console(request: Request) -> Answer:
        """Open the console."""
        return files[PAGE].answer(request)

    @Operation(tag=Tag.CONSOLE, answer_media=MEDIA[".js"], any_query=True)
    async def get_console_file(request: Request) -> Answer:
        """Read a script or style of the console."""
        found = files.get(request.params["file"])
        if found is None:
            raise NotFound("the console has no such file")
        return found.answer(request)

    @Operation(tag=Tag.CONSOLE, answer=ConsoleSettings)
    async def get_console_config(request: Request) -> Answer:
        """Read how users sign in to the console."""
        return answer_json(shown)

    routes = [
        _caller_route(gates),
        Route("GET", "/console", gate, get_console),
        Route("GET", "/console/{file}", gate, get_console_file),
        Route("GET", "/console/config.json", gate, get_console_config),
    ]
    if issuer and has_demo_links:
        routes.append(_session_route(gate, settings.data_dir, issuer))
    return tuple(routes)


def _caller_route(gates: Mapping[str, Gate]) -> Route:
    @Operation(tag=Tag.USERS, answer=CallerDescription)
    async def get_caller(request: Request) -> Answer:
        """Read whose the credential is and what it may call."""
        caller = caller_of(request)
        organization = caller.organization
        ends = caller.expires_at
        environment = None
        role = None
        match caller.principal:
            case ApiKeyPrincipal(key_id=key_id, environment=own):
                kind = "API_KEY"
                principal_id = str(key_id)
                environment = own
            case UserPrincipal(subject=subject, role=claimed):
                kind = "USER"
                principal_id = subject
                role = claimed
            case ServicePrincipal(client_id=client_id):
                kind = "SERVICE"
                principal_id = client_id
        shown = CallerDescription(
            principal_type=kind,
            principal_id=principal_id,
            organization_id=str(organization.id) if organization else None,
            organization_name=organization.name if organization else None,
            environment=environment,
            role=role,
            expires_at=rfc3339(ends) if ends else None,
            policies=sorted(
                name for name, gate in gates.items() if not gate.public and gate.allows(caller)
            ),
        )
        return answer_json(shown)

    return Route("GET", "/v1/caller", gates["read_caller"], get_caller)


def _session_route(gate: Gate, data_dir: Path, issuer: TokenIssuer) -> Route:
    @Operation(
        tag=Tag.CONSOLE,
        body=DemoCode,
        answer=DemoSession,
        max_body_bytes=MAX_CODE_BYTES,
        errors=(Unauthorized, Forbidden, NotFound),
    )
    async def create_console_session(request: Request) -> Answer:
        """Exchange the code of a demo link for the demo's credentials."""
        _check_is_local(request)
        key = read_demo_key(data_dir)
        if not redeem_code(data_dir, request.body(DemoCode).code) or key is None:
            raise Unauthorized(
                "the link is used or older than 60 s; `trading-intents console` prints a new one"
            )
        token = await issuer.issue_for_user(DEMO, DEMO)
        answer = answer_json(DemoSession(token.reveal(), "Bearer", TOKEN_SECONDS, key.reveal()))
        answer.headers.append(NO_STORE)
        return answer

    return Route("POST", "/console/session", gate, create_console_session)


def _load_files(settings: Settings) -> Mapping[str, StaticFile]:
    headers = browser_headers(_issuer_origins(settings) if settings.console_oidc_client_id else ())
    folder = resources.files(__package__).joinpath("static")
    return {
        file.name: StaticFile(file.read_bytes(), MEDIA[Path(file.name).suffix], headers)
        for file in folder.iterdir()
    }


def _issuer_origins(settings: Settings) -> list[str]:
    """The origins at which the browser asks for the issuer's metadata and tokens."""
    assert settings.identity_provider_name != LOCAL_PROVIDER
    issuer = urlsplit(settings.identity_issuer)
    return list(
        dict.fromkeys((f"{issuer.scheme}://{issuer.netloc}", *settings.console_oidc_origins))
    )


def _check_is_local(request: Request) -> None:
    """Refuses browsers of other machines: the link was printed in a terminal of this one. Another
    site's page cannot send this: its Origin is not our Host."""
    host = request.header(b"host") or ""
    origin = request.header(b"origin") or ""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket without its pair, or without an address between them
        name = ""
    if any(request.header(header) is not None for header in FORWARDING_HEADERS):
        raise Forbidden("a demo link cannot be used through a proxy")
    if not is_loopback(name) or origin not in (f"http://{host}", f"https://{host}"):
        raise Forbidden("a demo link is for a browser on this machine; open it as it was printed")
