"""Use cases of identity: identify callers, manage API keys, issue service tokens, find
organizations."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from trading_intents import errors
from trading_intents.clock import Clock
from trading_intents.config import LOCAL_PROVIDER
from trading_intents.identity import model, store
from trading_intents.identity.keys import digest, hint, is_key, make_key, same_digest
from trading_intents.identity.provider import EmbeddedProvider
from trading_intents.identity.tokens import TokenVerifier
from trading_intents.ids import ID_RULE, IdMaker, OrganizationId, parse_id
from trading_intents.loops import repeat
from trading_intents.outbox.outcomes import reason_of
from trading_intents.secret import Secret
from trading_intents.storage.database import Pool
from trading_intents.storage.pages import PageRequest
from trading_intents.storage.ttl_cache import TtlCache
from trading_intents.telemetry import Log
from trading_intents.trading import Environment
from trading_intents.web.body import MAX_TEXT_CHARACTERS
from trading_intents.web.request import Expected, check_version

MAX_AGE_SECONDS = 0.8
MAX_RECENT = 50_000
# For so long the limit of failed credentials does not apply to a credential.
VERIFIED_SECONDS = 15 * 60.0
MAX_KEYS_PER_ORGANIZATION = 1_000
LAST_USED_SECONDS = 5.0
MAX_CLIENT_ID = 128
MAX_SESSION = timedelta(hours=12)
MAX_SESSIONS = 5  # of a user and environment
MAX_TOKEN_AGE_FOR_LIVE = timedelta(minutes=10)  # then the person signs in again
ENDED_SESSIONS_KEPT_DAYS = 30  # so that histories can name the person


class Callers:
    """Identifies callers. What it reads from the database is at most 800 ms old."""

    def __init__(
        self, pool: Pool, verifier: TokenVerifier, provider: str, local: bool, clock: Clock
    ) -> None:
        self._pool = pool
        self._verifier = verifier
        self._provider = provider
        self._local = local
        self._clock = clock
        self._keys = TtlCache[bytes, model.KeyRecord](clock, MAX_AGE_SECONDS, MAX_RECENT)
        self._users = TtlCache[tuple[str, str | None], model.UserRecord](
            clock, MAX_AGE_SECONDS, MAX_RECENT
        )
        self._services = TtlCache[str, model.ServiceAccount](clock, MAX_AGE_SECONDS, MAX_RECENT)
        self._organizations = TtlCache[UUID, model.OrganizationRecord](
            clock, MAX_AGE_SECONDS, MAX_RECENT
        )
        # When each credential was last verified, by its digest, oldest first.
        self._verified: dict[bytes, float] = {}
        # By the steady clock, which is read in a fifth of the time.
        self._used: dict[model.KeyId, float] = {}

    async def by_key(self, text: str) -> model.Caller:
        key_digest = digest(text)
        record = await self._keys.get(key_digest, lambda: self._read_key(text, key_digest))
        # The same answer for every cause, so that guesses learn nothing.
        if record is None or not same_digest(record.digest, key_digest):
            raise errors.Unauthorized("the API key does not verify")
        self._used[record.key.id] = self._clock.monotonic()
        return record.caller

    def known(self, text: str) -> model.Caller | None:
        """Like `by_key`, for a caller that is cached; None if it has to be read or would be
        refused."""
        key_digest = digest(text)
        record = self._keys.get_cached(key_digest, lambda: self._read_key(text, key_digest))
        if record is None or not same_digest(record.digest, key_digest):
            return None
        self._used[record.key.id] = self._clock.monotonic()
        return record.caller

    async def by_token(self, token: str) -> model.Caller:
        """A user's organization comes from the token; a service account has none yet: see
        `in_organization`."""
        token_digest = digest(token)
        try:
            claims = await self._verifier.verify(token)
            # Of what was signed: a signature of ES256 has a second value that verifies.
            signed_digest = digest(token.rpartition(".")[0])
            caller = await (
                self._service(claims) if claims.is_service else self._user(claims, signed_digest)
            )
        except errors.Unauthorized:
            self._note_verified(token_digest, False)
            raise
        self._note_verified(token_digest, True)
        return caller

    def is_verified(self, credential: str) -> bool:
        """Whether a key or token was verified within VERIFIED_SECONDS, and has not failed since."""
        verified_at = self._verified.get(digest(credential))
        return verified_at is not None and self._clock.monotonic() - verified_at <= VERIFIED_SECONDS

    def _note_verified(self, credential_digest: bytes, is_verified: bool) -> None:
        self._verified.pop(credential_digest, None)
        if is_verified:
            if len(self._verified) >= MAX_RECENT:
                del self._verified[next(iter(self._verified))]
            self._verified[credential_digest] = self._clock.monotonic()

    def clear_cache(self) -> None:
        """Makes a change by this process hold here at once."""
        for cache in (self._keys, self._users, self._services, self._organizations):
            cache.clear()

    async def report_use(self) -> None:
        """Writes when keys were last used; keeps that for the next call if the write fails."""
        used = self._used
        self._used = {}
        if not used:
            return
        start = self._clock.now() - timedelta(seconds=self._clock.monotonic())
        times = [start + timedelta(seconds=seconds) for seconds in used.values()]
        try:
            async with self._pool.transaction() as tx:
                await store.touch_keys(tx, list(used), times)
        except Exception:
            self._used = used | self._used
            raise

    async def _user(self, claims: model.Claims, signed_digest: bytes) -> model.Caller:
        subject = claims.subject
        named = claims.organization
        record = await self._users.get((subject, named), lambda: self._read_user(subject, named))
        if record is None or record.deleted or (self._local and not record.known):
            raise errors.Unauthorized("the user is not known")
        if record.tokens_after is not None and claims.issued_at <= record.tokens_after:
            raise errors.Unauthorized("the token is from before the user's deletion")
        if record.organization and record.organization.disabled:
            raise errors.Unauthorized("the organization is disabled")
        # Roles of the embedded provider are in the database, so a change needs no new token.
        role = record.role if self._local else claims.role
        principal = model.UserPrincipal(subject, named, role)
        return model.Caller(
            principal, record.organization, claims.expires_at, claims.issued_at, signed_digest
        )

    async def in_organization(self, service: model.Caller, named: str | None) -> model.Caller:
        """The service account as a caller of the organization that it names: of none, if there is
        no such one."""
        if not named:
            raise errors.InvalidRequest(
                "the header x-organization-id is missing; a service account names the "
                "organization that it reads"
            )
        organization_id = parse_id(named)
        if organization_id is None:
            raise errors.InvalidRequest(f"x-organization-id {ID_RULE}")
        read = self._organizations.get(
            organization_id, lambda: self._read_organization(organization_id)
        )
        return replace(service, organization=await read)

    async def _service(self, claims: model.Claims) -> model.Caller:
        scopes = claims.scopes
        if self._local:
            account = await self._services.get(
                claims.subject, lambda: self._read_service(claims.subject)
            )
            if account is None or account.disabled:
                raise errors.Unauthorized("the service account is not known")
            scopes &= account.scopes
        return model.Caller(model.ServicePrincipal(claims.subject, scopes), None, claims.expires_at)

    async def _read_key(self, text: str, key_digest: bytes) -> model.KeyRecord | None:
        if not is_key(text):
            return None  # it never was a key, so nothing is read
        # All keys that did not verify lately wait in one line, so that guesses delay nobody else.
        slot = key_digest if key_digest in self._verified else None
        async with self._pool.transaction(read_only=True, slot=slot) as tx:
            record = await store.find_key(tx, key_digest)
        # A disabled key is not cached: once it is enabled again it works at once.
        if record is not None and record.is_refused:
            record = None
        self._note_verified(key_digest, record is not None)
        return record

    async def _read_user(self, subject: str, organization: str | None) -> model.UserRecord:
        async with self._pool.transaction(read_only=True, slot=subject) as tx:
            return await store.find_user(tx, self._provider, subject, organization)

    async def _read_service(self, client_id: str) -> model.ServiceAccount | None:
        async with self._pool.transaction(read_only=True, slot=client_id) as tx:
            return await store.find_service_account(tx, client_id)

    async def _read_organization(self, organization_id: UUID) -> model.OrganizationRecord | None:
        async with self._pool.transaction(read_only=True) as tx:
            return await store.find_organization(tx, organization_id)


async def keep_reporting(callers: Callers, log: Log) -> None:
    """Writes last_used_at of all keys in one statement every few seconds, instead of once a
    request."""

    def on_error(_: str, error: Exception) -> None:
        log.warning("API key use not written", reason=reason_of(error))

    await repeat(callers.report_use, LAST_USED_SECONDS, on_error)


class ApiKeys:
    def __init__(self, pool: Pool, make_id: IdMaker, callers: Callers) -> None:
        self._pool = pool
        self._make_id = make_id
        self._callers = callers

    async def create(
        self,
        organization_id: OrganizationId,
        name: str,
        environment: Environment,
        permissions: Iterable[model.Permission],
        expires_at: datetime | None = None,
    ) -> tuple[model.ApiKeyRecord, Secret]:
        """Makes a key. The key itself is only in this answer: the database has its digest."""
        secret = make_key(environment)
        text = secret.reveal()
        async with self._pool.transaction([organization_id]) as tx:
            now = await store.lock_organization(tx, organization_id)
            if expires_at is not None and expires_at <= now:
                raise errors.ValidationFailed.at("/expires_at", "must be in the future")
            if await store.count_keys(tx, organization_id) >= MAX_KEYS_PER_ORGANIZATION:
                raise errors.LimitReached(
                    f"the organization has {MAX_KEYS_PER_ORGANIZATION} API keys, which is the "
                    "limit; delete some"
                )
            new = model.NewKey(
                name=name,
                environment=environment,
                permissions=sorted(permissions),
                digest=digest(text),
                hint=hint(text),
                expires_at=expires_at,
            )
            key = await store.insert_key(tx, self._make_id(), organization_id, new)
        return key, secret

    async def open_session(
        self, caller: model.Caller, environment: Environment
    ) -> tuple[model.ApiKeyRecord, Secret]:
        user = caller.principal
        assert isinstance(user, model.UserPrincipal)
        assert caller.expires_at is not None
        assert caller.issued_at is not None
        added = {model.Permission.CONTROL_EDIT} if user.role == model.Role.ADMIN else set()
        secret = make_key(environment)
        text = secret.reveal()
        permissions = sorted(model.PermissionSet.TRADER.permissions | added)
        async with self._pool.transaction([caller.organization_id]) as tx:
            now = await store.lock_organization(tx, caller.organization_id)
            if environment is Environment.LIVE and now - caller.issued_at > MAX_TOKEN_AGE_FOR_LIVE:
                raise errors.Forbidden(
                    "a session key of environment live takes a token of the last 10 minutes; "
                    "sign in again"
                )
            ends = min(caller.expires_at, now + MAX_SESSION)
            name = user.subject[:MAX_TEXT_CHARACTERS]
            new = model.NewKey(
                name=name,
                environment=environment,
                permissions=permissions,
                digest=digest(text),
                hint=hint(text),
                expires_at=ends,
                user_subject=user.subject,
                token_digest=caller.token_digest,
            )
            key = await store.insert_key(tx, self._make_id(), caller.organization_id, new)
            await store.end_oldest_sessions(tx, key, MAX_SESSIONS, ENDED_SESSIONS_KEPT_DAYS)
        self._callers.clear_cache()
        return key, secret

    async def end_sessions(self, caller: model.Caller) -> None:
        assert caller.token_digest is not None
        async with self._pool.transaction([caller.organization_id]) as tx:
            await store.end_sessions_of_token(tx, caller.organization_id, caller.token_digest)
        self._callers.clear_cache()

    async def list(
        self, organization_id: OrganizationId, page: PageRequest
    ) -> list[model.ApiKeyRecord]:
        async with self._pool.transaction([organization_id], read_only=True) as tx:
            return await store.list_keys(tx, organization_id, page)

    async def change(
        self,
        organization_id: OrganizationId,
        key_id: UUID | None,
        read_change: Callable[[], model.ApiKeyChange],
        expected: Expected,
    ) -> model.ApiKeyRecord:
        """Reads the change only once the key is found: 404 comes before 422."""
        async with self._pool.transaction([organization_id]) as tx:
            key = key_id and await store.lock_key(tx, organization_id, key_id)
            if not key:
                raise errors.NotFound("no such API key")
            change = read_change()
            permissions = (
                key.permissions
                if change.permissions is None
                else model.distinct(change.permissions)
            )
            check_version(key.version, expected)
            name = key.name if change.name is None else change.name
            disabled = key.disabled if change.disabled is None else change.disabled
            if (name, permissions, disabled) != (key.name, key.permissions, key.disabled):
                key = await store.update_key(
                    tx,
                    key_id=key.id,
                    name=name,
                    permissions=permissions,
                    disabled=disabled,
                    expires_at=key.expires_at,
                )
        self._callers.clear_cache()
        return key

    async def remove(
        self, organization_id: OrganizationId, key_id: UUID | None, expected: Expected
    ) -> None:
        async with self._pool.transaction([organization_id]) as tx:
            key = key_id and await store.lock_key(tx, organization_id, key_id)
            if not key:
                raise errors.NotFound("no such API key")
            check_version(key.version, expected)
            await store.delete_key(tx, key.id)
        self._callers.clear_cache()

    async def validate(self, text: str) -> tuple[model.ApiKeyRecord, bool]:
        """Gives the key, and whether it is refused: disabled, expired, or of a disabled
        organization."""
        key_digest = digest(text)
        async with self._pool.transaction(read_only=True) as tx:
            # Malformed keys are looked up too, so that they take the same time as unknown ones.
            record = await store.find_key(tx, key_digest)
        if not is_key(text) or record is None or not same_digest(record.digest, key_digest):
            raise errors.InvalidApiKey
        return record.key, record.is_refused


class Organizations:
    def __init__(self, pool: Pool, provider: str) -> None:
        self._pool = pool
        self._provider = provider

    async def by_provider(
        self, caller: model.Caller, provider: str, external_id: str
    ) -> model.OrganizationRecord:
        """Service accounts may read any organization, users the ones that they belong to."""
        async with self._pool.transaction(read_only=True) as tx:
            if isinstance(caller.principal, model.UserPrincipal):
                active = caller.organization.id if caller.organization else None
                subject = caller.principal.subject
                found = await store.find_own_organization(
                    tx, provider, external_id, subject, active
                )
            else:
                found = await store.find_organization_by_external_id(tx, provider, external_id)
        if found is None or provider != self._provider:
            raise errors.NotFound("no such organization")
        return found


class TokenIssuer:
    """The embedded provider's tokens: of clients (RFC 6749 §4.4), and of users whom an operator
    vouches for."""

    def __init__(self, pool: Pool, provider: EmbeddedProvider) -> None:
        self._pool = pool
        self._provider = provider

    async def issue(
        self, client_id: str, client_secret: str, scope: str | None
    ) -> tuple[Secret, frozenset[model.Scope]]:
        async with self._pool.transaction(read_only=True) as tx:
            found = (
                await store.find_service_account(tx, client_id) if _plausible(client_id) else None
            )
        stored = found.digest if found else bytes(32)
        if not same_digest(stored, digest(client_secret)) or found is None or found.disabled:
            raise errors.Unauthorized(
                "the client id or the client secret is wrong", challenge=errors.BASIC_CHALLENGE
            )
        scopes = _narrow(found.scopes, scope)
        return self._provider.issue_service_token(client_id, scopes), scopes

    async def issue_for_user(self, user: str, organization: str | None) -> Secret:
        async with self._pool.transaction(read_only=True) as tx:
            record = await store.find_user(tx, LOCAL_PROVIDER, user, organization)
        if not record.known or record.deleted:
            raise errors.NotFound(f"no user {user}: `trading-intents admin apply` makes one")
        if organization is not None and record.role is None:
            raise errors.NotFound(f"{user} is no member of an organization {organization}")
        return self._provider.issue_user_token(user, organization, record.role)


def _plausible(client_id: str) -> bool:
    return 0 < len(client_id) <= MAX_CLIENT_ID and "\x00" not in client_id


def _narrow(granted: frozenset[model.Scope], requested: str | None) -> frozenset[model.Scope]:
    if not requested:
        return granted
    wanted = set(requested.split())
    if not wanted <= granted:
        raise errors.InvalidScope(
            "the client does not have every scope that it asks for; it has "
            f"{' '.join(sorted(granted)) or 'none'}"
        )
    return frozenset(map(model.Scope, wanted))
