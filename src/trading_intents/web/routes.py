"""Endpoints as data: their contracts, who may call them, and where they are."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from trading_intents.errors import PlatformError
from trading_intents.web.body import MAX_BODY_BYTES
from trading_intents.web.limits import Bucket, Verifier
from trading_intents.web.problem import PROBLEM, ErrorShape
from trading_intents.web.request import (
    JSON,
    Answer,
    PendingAnswer,
    Request,
    check_entity_tags,
)

Handler = Callable[[Request], Awaitable[Answer | PendingAnswer]]
H = TypeVar("H", bound=Callable[..., Awaitable[Answer | PendingAnswer]])
Respond = Callable[[Answer], None]


class Tag(StrEnum):
    """The groups of operations in the API's description, in the order in which it shows them."""

    INTENTS = "Intents"
    ORDERS = "Orders"
    PRICES = "Prices and balances"
    EVENTS = "Events"
    CONTROLS = "Controls"
    ACCOUNTS = "Accounts"
    CREDENTIALS = "Credentials"
    BROKERS = "Brokers"
    PAPER = "Paper broker"
    API_KEYS = "API keys"
    ORGANIZATIONS = "Organizations"
    USERS = "Users"
    TOKENS = "Tokens"
    CONSOLE = "Console"
    OPERATIONS = "Operations"


class Policy(Verifier, Protocol):
    """Decides who may call. Features take theirs from the table in identity/access.py."""

    name: str
    meaning: str  # one line for the documentation
    public: bool  # no credential is read
    credentials: tuple[str, ...]  # the kinds that are taken: api_key, bearer
    names_organization: bool  # by x-organization-id, a service account must

    def permit(self, request: Request) -> None:
        """Raise Forbidden if this caller may not."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    meaning: str
    schema: dict[str, Any]
    where: str = "query"
    # Raises InvalidRequest when the value cannot be read.
    check: Callable[[str], object] | None = None


IF_MATCH = Parameter(
    "if-match",
    'Write only if the version is still this one, such as "3".',
    {"type": "string"},
    where="header",
    check=check_entity_tags,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Decorates a handler with its endpoint's contract. The handler's name is the id by which a
    generated client calls the endpoint; its docstring is the summary."""

    tag: Tag
    body: Any = field(default=None, kw_only=True)  # the msgspec type of the request body
    is_body_optional: bool = False  # no body is read as an empty object
    answer: Any = None  # the msgspec type of the success body
    status: int = 200
    # Of the same answer where the call found its work done before.
    repeated_status: int | None = None
    bucket: Bucket | None = None  # None: READS of a GET, WRITES of anything else
    # The bucket then counts only requests that are refused before the handler runs.
    is_counted_by_handler: bool = False
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[type[PlatformError], ...] = ()  # beyond those that every route of its shape has
    error_shape: ErrorShape = PROBLEM
    # Verifies well-formed keys, some a second, of an address that used up its failures.
    verifies_late: bool = False
    always: bool = False  # answers while the process drains, and has no rate limit
    any_query: bool = False  # query parameters that it does not declare are ignored, not refused
    answer_media: bytes = JSON
    body_media: bytes = JSON
    max_body_bytes: int = MAX_BODY_BYTES
    csv_columns: tuple[str, ...] = ()  # of a list that is also answered as CSV, by `Accept`

    def __call__(self, handle: H) -> H:
        setattr(handle, _DECLARED, self)
        return handle


_DECLARED = "operation"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    policy: Policy
    handle: Handler
    operation: Operation = field(init=False)

    def __post_init__(self) -> None:
        for need in ("name", "meaning", "identify", "permit"):
            if not hasattr(self.policy, need):
                raise TypeError(f"{self.method} {self.path} has no policy")
        object.__setattr__(self, "operation", getattr(self.handle, _DECLARED))

    @property
    def limited_by(self) -> Bucket | None:
        if self.operation.always:
            return None
        if self.operation.bucket:
            return self.operation.bucket
        return Bucket.READS if self.method == "GET" else Bucket.WRITES

    @property
    def summary(self) -> str:
        return " ".join((self.handle.__doc__ or "").split())
