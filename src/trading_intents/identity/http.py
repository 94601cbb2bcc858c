"""Identity over HTTP: API keys, their validation, organizations, and the embedded provider's
endpoints."""

import base64
import binascii
import functools
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from trading_intents import errors
from trading_intents.identity import model
from trading_intents.identity.access import Gate, caller_of, organization_of
from trading_intents.identity.model import ApiKeyChange, Permission, PermissionSet, distinct
from trading_intents.identity.provider import KEYS_PATH, TOKEN_PATH, TOKEN_SECONDS, EmbeddedProvider
from trading_intents.identity.service import ApiKeys, Organizations, TokenIssuer
from trading_intents.identity.users import Users
from trading_intents.ids import parse_id
from trading_intents.secret import Secret
from trading_intents.trading import Environment
from trading_intents.web.body import Name
from trading_intents.web.limits import Bucket
from trading_intents.web.paging import PAGE_PARAMETERS, Listing, read_page, read_time
from trading_intents.web.problem import OAUTH, PLAIN
from trading_intents.web.request import (
    FORM,
    MAX_FORM_BYTES,
    NO_STORE,
    Answer,
    Request,
    answer_json,
    show_as,
)
from trading_intents.web.routes import IF_MATCH, Operation, Route, Tag

DISCOVERY_PATH = "/.well-known/openid-configuration"
MAX_BASIC_CHARACTERS = 2 * 1024


class NewApiKey(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    environment: Environment
    permissions: list[Permission] | None = None
    permission_set: PermissionSet | None = None
    expires_at: str | None = None


class NewSessionKey(msgspec.Struct, forbid_unknown_fields=True):
    environment: Environment


class ApiKey(msgspec.Struct, kw_only=True):
    id: str
    organization_id: str
    name: str
    environment: Environment
    permissions: list[Permission]
    disabled: bool
    hint: str
    last_used_at: str | None
    expires_at: str | None
    user: str | None
    created_at: str
    updated_at: str
    version: int


class CreatedApiKey(ApiKey):
    api_key: str


class KeyToValidate(msgspec.Struct, forbid_unknown_fields=True):
    api_key: str


class KeyValidation(msgspec.Struct):
    id: str
    organization_id: str
    environment: Environment
    disabled: bool
    created_at: str


class Organization(msgspec.Struct, kw_only=True):
    id: str
    external_id: str
    name: str
    provider: str
    disabled: bool
    created_at: str


class TokenRequest(msgspec.Struct):
    """RFC 6749 §4.4.2; the client may authenticate with HTTP Basic instead."""

    grant_type: str
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None


class IssuedToken(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: int
    scope: str


def key_routes(gates: dict[str, Gate], keys: ApiKeys) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.API_KEYS,
        body=NewApiKey,
        answer=CreatedApiKey,
        status=201,
        errors=(errors.LimitReached,),
    )
    async def create_api_key(request: Request) -> Answer:
        """Make an API key; it is shown this once."""
        body = request.body(NewApiKey)
        if (body.permissions is None) == (body.permission_set is None):
            raise errors.ValidationFailed.at(
                "/permissions", "is required, or permission_set instead; give one of the two"
            )
        granted = (
            body.permission_set.permissions
            if body.permission_set
            else distinct(body.permissions or [])
        )
        expires_at = None if body.expires_at is None else read_time("/expires_at", body.expires_at)
        key, secret = await keys.create(
            organization_of(request), body.name, body.environment, granted, expires_at
        )
        return _show_new_key(key, secret)

    @Operation(tag=Tag.API_KEYS, answer=Listing[ApiKey], parameters=PAGE_PARAMETERS)
    async def list_api_keys(request: Request) -> Answer:
        """List the organization's API keys."""
        organization_id = organization_of(request)
        page = read_page(request, f"api-keys:{organization_id}", parse_id)
        rows = await keys.list(organization_id, page)
        return answer_json(page.answer(rows, lambda key: str(key.id), _show_key))

    @Operation(tag=Tag.API_KEYS, body=ApiKeyChange, answer=ApiKey, parameters=(IF_MATCH,))
    async def update_api_key(request: Request) -> Answer:
        """Change an API key's name, permissions or disabled flag."""
        organization_id = organization_of(request)
        key_id = parse_id(request.params["id"])
        change = functools.partial(request.body, ApiKeyChange)
        key = await keys.change(organization_id, key_id, change, request.if_match())
        return answer_json(_show_key(key), version=key.version)

    @Operation(tag=Tag.API_KEYS, status=204, parameters=(IF_MATCH,))
    async def delete_api_key(request: Request) -> Answer:
        """Delete an API key."""
        organization_id = organization_of(request)
        await keys.remove(organization_id, parse_id(request.params["id"]), request.if_match())
        return Answer(status=204)

    gate = gates["api_keys"]
    return (
        Route("POST", "/v1/api-keys", gate, create_api_key),
        Route("GET", "/v1/api-keys", gate, list_api_keys),
        Route("PATCH", "/v1/api-keys/{id}", gate, update_api_key),
        Route("DELETE", "/v1/api-keys/{id}", gate, delete_api_key),
    )


def session_routes(gates: dict[str, Gate], keys: ApiKeys) -> tuple[Route, ...]:
    """Those of one key: a user's session, and to whom a key belongs."""

    @Operation(tag=Tag.API_KEYS, body=NewSessionKey, answer=CreatedApiKey, status=201)
    async def open_session(request: Request) -> Answer:
        """Make an API key for the calling user, which ends with the user's token; it is shown this
        once."""
        environment = request.body(NewSessionKey).environment
        key, secret = await keys.open_session(caller_of(request), environment)
        return _show_new_key(key, secret)

    @Operation(tag=Tag.API_KEYS, status=204)
    async def end_session(request: Request) -> Answer:
        """End the session keys that the calling token made."""
        await keys.end_sessions(caller_of(request))
        return Answer(status=204)

    @Operation(
        tag=Tag.API_KEYS,
        body=KeyToValidate,
        answer=KeyValidation,
        bucket=Bucket.READS,
        errors=(errors.InvalidApiKey,),
    )
    async def validate_api_key(request: Request) -> Answer:
        """Read to whom an API key belongs."""
        key, disabled = await keys.validate(request.body(KeyToValidate).api_key)
        return answer_json(show_as(KeyValidation, key, disabled=disabled))

    return (
        Route("POST", "/v1/api-keys/session", gates["open_session"], open_session),
        Route("DELETE", "/v1/api-keys/session", gates["end_session"], end_session),
        Route("POST", "/api/v1/auth/api-key/validate", gates["public"], validate_api_key),
    )


def organization_route(gate: Gate, organizations: Organizations) -> Route:
    @Operation(tag=Tag.ORGANIZATIONS, answer=Organization)
    async def find_organization(request: Request) -> Answer:
        """Find an organization by its identity provider's id."""
        found = await organizations.by_provider(
            caller_of(request), request.params["provider"], request.params["provider_id"]
        )
        return answer_json(show_as(Organization, found))

    return Route(
        "GET", "/v1/organizations/by-provider/{provider}/{provider_id}", gate, find_organization
    )


def user_route(gate: Gate, users: Users) -> Route:
    @Operation(tag=Tag.USERS, status=204, error_shape=PLAIN, any_query=True)
    async def delete_current_user(request: Request) -> Answer:
        """Delete the calling user for good, here and at the identity provider."""
        await users.delete_current(caller_of(request))
        return Answer(status=204)

    return Route("DELETE", "/v1/users/me", gate, delete_current_user)


def provider_routes(
    gate: Gate, provider: EmbeddedProvider, issuer: TokenIssuer
) -> tuple[Route, ...]:
    @Operation(
        tag=Tag.TOKENS,
        body=TokenRequest,
        body_media=FORM,
        max_body_bytes=MAX_FORM_BYTES,
        answer=IssuedToken,
        errors=(errors.Unauthorized, errors.InvalidScope, errors.UnsupportedGrantType),
        error_shape=OAUTH,
    )
    async def issue_token(request: Request) -> Answer:
        """Exchange client credentials for a bearer token."""
        form = request.form
        if form.get("grant_type") is None:
            raise errors.InvalidRequest("grant_type is missing; use client_credentials")
        if form["grant_type"] != "client_credentials":
            raise errors.UnsupportedGrantType
        client_id, client_secret = _client(request, form)
        access_token, scopes = await issuer.issue(client_id, client_secret, form.get("scope"))
        shown = IssuedToken(
            access_token.reveal(), "Bearer", TOKEN_SECONDS, " ".join(sorted(scopes))
        )
        answer = answer_json(shown)
        answer.headers += (NO_STORE, (b"pragma", b"no-cache"))  # RFC 6749 §5.1
        return answer

    @Operation(tag=Tag.TOKENS, answer=dict[str, Any])
    async def get_provider_metadata(request: Request) -> Answer:
        """Read the embedded provider's metadata."""
        return answer_json(provider.discovery())

    @Operation(tag=Tag.TOKENS, answer=dict[str, Any])
    async def get_provider_keys(request: Request) -> Answer:
        """Read the embedded provider's public keys."""
        return answer_json(provider.jwks())

    return (
        Route("POST", TOKEN_PATH, gate, issue_token),
        Route("GET", DISCOVERY_PATH, gate, get_provider_metadata),
        Route("GET", KEYS_PATH, gate, get_provider_keys),
    )


def _show_key(key: model.ApiKeyRecord) -> ApiKey:
    return show_as(ApiKey, key, permissions=sorted(key.permissions), user=key.user_subject)


def _show_new_key(key: model.ApiKeyRecord, secret: Secret) -> Answer:
    answer = answer_json(
        show_as(CreatedApiKey, _show_key(key), api_key=secret.reveal()), 201, key.version
    )
    answer.headers.append(NO_STORE)
    return answer


def _client(request: Request, form: dict[str, str]) -> tuple[str, str]:
    """The client's credentials, from HTTP Basic or from the form, never both (RFC 6749 §2.3)."""
    authorization = request.header(b"authorization")
    if authorization is None:
        if "client_id" not in form or "client_secret" not in form:
            raise errors.Unauthorized(
                "the client's credentials are missing; use HTTP Basic, or client_id and "
                "client_secret in the form",
                challenge=errors.BASIC_CHALLENGE,
            )
        return form["client_id"], form["client_secret"]
    if "client_secret" in form:
        raise errors.InvalidRequest("authenticate with HTTP Basic or in the form, not both")
    scheme, _, encoded = authorization.partition(" ")
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeError):
        decoded = ""
    client_id, colon, client_secret = decoded.partition(":")
    if scheme.lower() != "basic" or not colon or len(decoded) > MAX_BASIC_CHARACTERS:
        raise errors.Unauthorized(
            "the authorization header is not HTTP Basic; use client_id and client_secret",
            challenge=errors.BASIC_CHALLENGE,
        )
    return unquote_plus(client_id), unquote_plus(client_secret)
