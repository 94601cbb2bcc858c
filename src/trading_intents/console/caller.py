"""GET /v1/caller: who a credential is and what it may call, so that a program offers nothing that would be refused."""

from collections.abc import Mapping

import msgspec

from trading_intents.clock import rfc3339
from trading_intents.identity.access import Gate, caller_of
from trading_intents.identity.model import ApiKeyPrincipal, ServicePrincipal, UserPrincipal
from trading_intents.trading import Environment
from trading_intents.web.request import Answer, Request, answer_json
from trading_intents.web.routes import Operation, Route, Tag


class CallerDescription(msgspec.Struct):
    principal_type: str
    principal_id: str
    organization_id: str | None
    organization_name: str | None
    environment: Environment | None
    role: str | None
    expires_at: str | None
    policies: list[str]


def caller_route(gates: Mapping[str, Gate]) -> Route:
    @Operation(Tag.USERS, answer=CallerDescription)
    async def get_caller(request: Request) -> Answer:
        """Tell whose the credential is and what it may call."""
        caller = caller_of(request)
        organization, ends = caller.organization, caller.expires_at
        environment, role = None, None
        match caller.principal:
            case ApiKeyPrincipal(key_id=key_id, environment=own):
                kind, principal_id, environment = "API_KEY", str(key_id), own
            case UserPrincipal(subject=subject, role=claimed):
                kind, principal_id, role = "USER", subject, claimed
            case ServicePrincipal(client_id=client_id):
                kind, principal_id = "SERVICE", client_id
        shown = CallerDescription(
            kind,
            principal_id,
            str(organization.id) if organization else None,
            organization.name if organization else None,
            environment,
            role,
            rfc3339(ends) if ends else None,
            sorted(name for name, gate in gates.items() if not gate.public and gate.allows(caller)),
        )
        return answer_json(shown)

    return Route("GET", "/v1/caller", gates["read_caller"], get_caller)
