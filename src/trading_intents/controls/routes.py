"""All routes of controls, built with their use cases."""

from collections.abc import Mapping

from trading_intents.controls.bodies import read_zones
from trading_intents.controls.halts.http import halt_routes
from trading_intents.controls.halts.service import Halts
from trading_intents.controls.http import switch_routes, symbol_routes
from trading_intents.controls.limits.http import limit_routes
from trading_intents.controls.limits.service import LimitsService
from trading_intents.controls.service import ControlsService
from trading_intents.identity.access import Gate
from trading_intents.prices.model import PriceRules
from trading_intents.storage.database import Pool
from trading_intents.web.routes import Route


def control_routes(
    gates: Mapping[str, Gate], pool: Pool, prices: PriceRules, halts: Halts
) -> tuple[Route, ...]:
    controls = ControlsService(pool)
    zones = read_zones()
    return (
        *switch_routes(gates, controls),
        *symbol_routes(gates, controls, zones),
        *halt_routes(gates, halts),
        *limit_routes(gates, LimitsService(pool, prices), zones),
    )
