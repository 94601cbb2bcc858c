"""The table of the callers that each endpoint takes; nothing else decides it. Reads nothing by
itself."""

from collections.abc import Set as AbstractSet
from enum import Enum

from msgspec.structs import replace

from trading_intents import errors
from trading_intents.identity import model
from trading_intents.identity.keys import is_key
from trading_intents.identity.service import Callers
from trading_intents.ids import OrganizationId
from trading_intents.trading import Environment, FrozenStruct
from trading_intents.web.request import Request


class Refuse(Enum):
    AS_401 = 401  # a kind of caller that the endpoint does not take
    AS_403 = 403  # a kind that may read beside it, but not do this


class Grant(Enum):
    ANY = "any"  # being of this kind is enough


ANY_ROLE = frozenset(model.Role)
ADMIN = frozenset({model.Role.ADMIN})


class Rule(FrozenStruct, kw_only=True):
    name: str
    meaning: str
    key: model.Permission | Grant | Refuse = Refuse.AS_401
    user: AbstractSet[model.Role] | Grant | Refuse = Refuse.AS_401
    service: model.Scope | Grant | Refuse = Refuse.AS_401
    entitlement: model.Entitlement | None = None
    environment: Environment | None = None  # an API key must be of this one
    names_organization: bool = True  # a service account says which by x-organization-id
    user_needs_organization: bool = True
    member_trading: bool = False  # a member's organization must have it
    internal: bool = False  # a user's organization must be a configured internal one
    two_credentials_status: int = 400
    public: bool = False


def _reading(
    name: str, permission: model.Permission, entitlement: model.Entitlement | None = None
) -> Rule:
    meaning = f"an API key with {permission}; a user; a service account with {permission}"
    return Rule(
        name=name,
        meaning=_with(entitlement) + meaning,
        key=permission,
        user=ANY_ROLE,
        service=model.Scope(permission),
        entitlement=entitlement,
    )


def _writing(
    name: str, permission: model.Permission, entitlement: model.Entitlement | None = None
) -> Rule:
    meaning = f"an API key with {permission}; an admin"
    return Rule(
        name=name,
        meaning=_with(entitlement) + meaning,
        key=permission,
        user=ADMIN,
        service=Refuse.AS_403,
        entitlement=entitlement,
    )


def _with(entitlement: model.Entitlement | None) -> str:
    return f"with {entitlement}: " if entitlement else ""


def _with_any_credential(name: str) -> Rule:
    return Rule(
        name=name,
        meaning="any caller with a credential",
        key=Grant.ANY,
        user=Grant.ANY,
        service=Grant.ANY,
        names_organization=False,
        user_needs_organization=False,
    )


_P = model.Permission
_S = model.Scope
_PREMIUM = model.Entitlement.CONTROLS_PREMIUM

RULES = {
    rule.name: rule
    for rule in (
        Rule(name="public", meaning="anyone, without a credential", public=True),
        Rule(
            name="outbox_health",
            meaning="a service account with credential:read; an admin of an internal organization",
            user=ADMIN,
            service=_S.CREDENTIAL_READ,
            names_organization=False,
            internal=True,
            two_credentials_status=401,
        ),
        Rule(
            name="submit_intent",
            meaning="an API key with intent:edit (on live accounts trading_live)",
            key=_P.INTENT_EDIT,
        ),
        _reading("read_intents", _P.INTENT_READ),
        _writing("write_controls", _P.CONTROL_EDIT, _PREMIUM),
        Rule(
            name="write_organization_control",
            meaning="with controls_premium: an admin",
            user=ADMIN,
            entitlement=_PREMIUM,
        ),
        _reading("read_controls", _P.CONTROL_READ, _PREMIUM),
        replace(
            _writing("halt_account", _P.CONTROL_EDIT),
            meaning="an API key with control:edit (and intent:edit for close_positions); an admin",
            service=Refuse.AS_401,
        ),
        Rule(name="halt_organization", meaning="an admin", user=ADMIN),
        _reading("read_halts", _P.CONTROL_READ),
        replace(
            _with_any_credential("organization_by_provider"),
            meaning="a service account; a user of that organization",
            key=Refuse.AS_401,
        ),
        Rule(
            name="delete_current_user",
            meaning="a user with an active organization",
            user=Grant.ANY,
            two_credentials_status=401,
        ),
        _writing("write_accounts", _P.ACCOUNT_EDIT),
        _writing("write_credentials", _P.CREDENTIAL_EDIT),
        _reading("read_accounts", _P.ACCOUNT_READ),
        Rule(name="api_keys", meaning="an admin", user=ADMIN),
        Rule(
            name="read_key_limits",
            meaning="an admin; an API key, its own",
            key=Grant.ANY,
            user=ADMIN,
        ),
        Rule(
            name="open_session",
            meaning="an admin; a member, where the organization has member_trading",
            user=ANY_ROLE - {model.Role.READ_ONLY},
            member_trading=True,
        ),
        Rule(name="end_session", meaning="a user", user=ANY_ROLE),
        Rule(
            name="paper_quotes",
            meaning="a paper API key with account:edit; an admin",
            key=_P.ACCOUNT_EDIT,
            user=ADMIN,
            environment=Environment.PAPER,
        ),
        replace(
            _reading("read_paper_quotes", _P.ACCOUNT_READ),
            meaning="a paper API key with account:read; a user; "
            "a service account with account:read",
            environment=Environment.PAPER,
        ),
        replace(_writing("write_reference_prices", _P.CONTROL_EDIT), service=Refuse.AS_401),
        _with_any_credential("brokers"),
        _with_any_credential("read_caller"),
        _reading("stream", _P.STREAM_READ),
    )
}


class Gate:
    """Applies a rule of the table; it is the policy of routes."""

    def __init__(
        self, rule: Rule, callers: Callers, internal_organizations: AbstractSet[str]
    ) -> None:
        self.name = rule.name
        self.meaning = rule.meaning
        self.public = rule.public
        takes_bearer = {rule.user, rule.service} != {Refuse.AS_401}
        takes = {"api_key": rule.key is not Refuse.AS_401, "bearer": takes_bearer}
        self.credentials = tuple(kind for kind, is_taken in takes.items() if is_taken)
        self.names_organization = rule.names_organization and not isinstance(rule.service, Refuse)
        self._rule = rule
        self._callers = callers
        self._internal = internal_organizations

    async def identify(self, request: Request) -> None:
        """Identifies the caller; 401 or 400 if that fails, or if the endpoint does not take this
        kind of caller."""
        key, bearer = self._credentials(request)
        if key is not None:
            caller = await self._callers.by_key(key)
        elif bearer is not None:
            caller = await self._callers.by_token(bearer)
        else:
            raise errors.Unauthorized("send an API key as x-api-key, or a bearer token")
        request.caller = caller  # also one that is refused: it counts in the limits of its own
        check_kind(self._rule, caller)
        if self.names_organization and isinstance(caller.principal, model.ServicePrincipal):
            request.caller = await self._callers.in_organization(
                caller, request.header(b"x-organization-id")
            )

    def recognize(self, request: Request) -> None:
        if self._rule.key is not Refuse.AS_401:
            key, _ = self._readable(request)
            request.caller = None if key is None else self._callers.known(key)

    def is_verified(self, request: Request) -> bool:
        """Whether this process verified the credential lately."""
        return any(
            given is not None and self._callers.is_verified(given)
            for given in self._readable(request)
        )

    def has_well_formed_key(self, request: Request) -> bool:
        return is_key(self._readable(request)[0] or "")

    def check(self, caller: model.Caller) -> None:
        """As `identify` and `permit`, for a caller that is known without a request: 401 for its
        kind, 403 for itself."""
        check_kind(self._rule, caller)
        check_grant(self._rule, caller, self._internal)

    def allows(self, caller: model.Caller) -> bool:
        """Whether it would be let through to objects of its own organization and environment."""
        try:
            self.check(caller)
            check_object(self._rule, caller, None)
        except errors.PlatformError:
            return False
        return True

    def permit(self, request: Request) -> None:
        """403 if this caller may not. 404 if the organization that a service account names does not
        exist."""
        if not self.public:
            check_grant(self._rule, caller_of(request), self._internal)

    def permit_object(self, request: Request, environment: Environment | None = None) -> None:
        """Checks environment and entitlement (403), once the path's object is known to be the
        caller's organization's."""
        check_object(self._rule, caller_of(request), environment)

    def _readable(self, request: Request) -> tuple[str | None, str | None]:
        """As `_credentials`; nothing where that raises."""
        try:
            return self._credentials(request)
        except errors.PlatformError:
            return None, None

    def _credentials(self, request: Request) -> tuple[str | None, str | None]:
        try:
            key = request.header(b"x-api-key")
            authorization = request.header(b"authorization")
            if key is not None and authorization is not None:
                raise errors.InvalidRequest("send an API key or a bearer token, not both")
        except errors.InvalidRequest as error:
            if self._rule.two_credentials_status == 401:
                raise errors.Unauthorized(error.detail) from None
            raise
        if authorization is None:
            return key, None
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise errors.Unauthorized(
                "the authorization scheme is not Bearer; send `Bearer` and the token"
            )
        return None, token.strip()


def caller_of(request: Request) -> model.Caller:
    assert isinstance(request.caller, model.Caller)
    return request.caller


def organization_of(request: Request) -> OrganizationId:
    return caller_of(request).organization_id


def check_kind(rule: Rule, caller: model.Caller) -> None:
    match caller.principal:
        case model.ApiKeyPrincipal():
            taken: object = rule.key
        case model.UserPrincipal():
            taken = rule.user
            # An organization that is not known here is not an internal one: 403 where that is
            # asked.
            named = caller.organization or (rule.internal and caller.principal.organization)
            if rule.user_needs_organization and not named:
                raise errors.Unauthorized("the token names no organization that is known here")
        case model.ServicePrincipal():
            taken = rule.service
    if taken is Refuse.AS_401:
        raise errors.Unauthorized(
            f"this endpoint does not take this kind of credential; it takes {rule.meaning}"
        )


def check_grant(rule: Rule, caller: model.Caller, internal_organizations: AbstractSet[str]) -> None:
    match caller.principal:
        case model.ApiKeyPrincipal() as key:
            _check_key(rule, key)
        case model.UserPrincipal(role=role):
            _check_user(rule, role, caller.organization, internal_organizations)
        case model.ServicePrincipal(scopes=scopes):
            if rule.service is not Grant.ANY and rule.service not in scopes:
                raise errors.Forbidden(
                    f"the service account may not do this; it takes {rule.meaning}"
                )
            if rule.names_organization and caller.organization is None:
                raise errors.NotFound("no such organization")


def _check_key(rule: Rule, key: model.ApiKeyPrincipal) -> None:
    if rule.key is not Grant.ANY and rule.key not in key.permissions:
        raise errors.Forbidden(f"the API key lacks the permission {rule.key}")
    if rule.environment not in (None, key.environment):
        raise errors.Forbidden(
            f"the API key is of environment {key.environment}; use one of {rule.environment}"
        )


def _check_user(
    rule: Rule,
    role: str | None,
    organization: model.OrganizationRecord | None,
    internal_organizations: AbstractSet[str],
) -> None:
    taken = rule.user
    if taken is not Grant.ANY and (isinstance(taken, Refuse) or role not in taken):
        raise errors.Forbidden(
            f"the user's role {role} does not allow this; it takes {rule.meaning}"
        )
    lets_members_trade = organization is not None and organization.member_trading
    if rule.member_trading and role != model.Role.ADMIN and not lets_members_trade:
        raise errors.Forbidden(
            "the organization does not let members trade: an operator sets member_trading"
        )
    if rule.internal and not _is_internal(organization, internal_organizations):
        raise errors.Forbidden("the organization is not an internal one; it takes an admin of one")


def check_object(rule: Rule, caller: model.Caller, environment: Environment | None) -> None:
    if isinstance(caller.principal, model.ApiKeyPrincipal) and environment not in (
        None,
        caller.principal.environment,
    ):
        raise errors.Forbidden(
            f"the API key is of environment {caller.principal.environment}, not {environment}"
        )
    if rule.entitlement:
        require_entitlement(caller, rule.entitlement)


def require_entitlement(caller: model.Caller, entitlement: model.Entitlement) -> None:
    if caller.organization is None or entitlement not in caller.organization.entitlements:
        raise errors.EntitlementRequired(f"the organization needs the entitlement {entitlement}")


def _is_internal(
    organization: model.OrganizationRecord | None, internal_organizations: AbstractSet[str]
) -> bool:
    return organization is not None and not internal_organizations.isdisjoint(
        {str(organization.id), organization.external_id}
    )
