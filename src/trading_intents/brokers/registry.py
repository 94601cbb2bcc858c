"""The installed brokers: entry points of the group `trading_intents.brokers`. Connects to none."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import msgspec

from trading_intents.brokers.port import (
    COMMANDS_GROUP,
    ENTRY_POINT_GROUP,
    Capabilities,
    Integration,
    Simulation,
)
from trading_intents.errors import StartupRefused
from trading_intents.telemetry import Log

OWN_DISTRIBUTION = "trading-intents"
BUILT_IN = "paper"
# Its tables of the quotes that organizations post, and of their symbols, which reference prices are
# read from.
POSTED_QUOTES = "paper_quotes"
QUOTED_SYMBOLS = "paper_symbols"

Commands = Mapping[str, Callable[..., Coroutine[Any, Any, None]]]
T = TypeVar("T")


class Registry:
    def __init__(self, integrations: Iterable[Integration]) -> None:
        self._by_name = {
            found.name: found for found in sorted(integrations, key=lambda found: found.name)
        }

    def find(self, name: str) -> Capabilities | None:
        found = self._by_name.get(name)
        return found.capabilities if found else None

    def integration(self, name: str) -> Integration | None:
        return self._by_name.get(name)

    def simulations(self, settings_of: Callable[[str], Mapping[str, str]]) -> dict[str, Simulation]:
        """By the brokers' names."""
        found = self._by_name.items()
        return {name: each.simulate(settings_of(name)) for name, each in found if each.simulate}

    def all(self) -> list[Capabilities]:
        return [found.capabilities for found in self._by_name.values()]


def installed_brokers(
    log: Log, settings_of: Callable[[str], Mapping[str, str]] = lambda _: {}
) -> Registry:
    """Loads the brokers. One that cannot be loaded, or whose name is taken, is logged and left out;
    ours come first. An entry point may be a function that makes several, from the settings that
    start with its name."""
    found = _load_all(ENTRY_POINT_GROUP, lambda point: _load(point, settings_of(point.name)), log)
    if BUILT_IN not in found:
        raise StartupRefused(
            f"the broker {BUILT_IN} is not installed with this program: install it again, "
            "such as by "
            "`pip install --no-deps --no-build-isolation -e .` in a checkout"
        )
    return Registry(found.values())


def broker_commands(log: Log) -> dict[str, Commands]:
    """The commands that integrations bring for operators, loaded likewise."""
    return _load_all(COMMANDS_GROUP, lambda point: [(point.name, point.load())], log)


def _load_all(
    group: str, load: Callable[[EntryPoint], Iterable[tuple[str, T]]], log: Log
) -> dict[str, T]:
    found: dict[str, T] = {}
    for point in sorted(entry_points(group=group), key=_rank):
        try:
            for name, loaded in load(point):
                if found.setdefault(name, loaded) is not loaded:
                    raise ValueError(f"the name {name} is taken")
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            log.error("broker left out", broker=point.name, module=point.module, reason=reason)
    return found


def _rank(point: EntryPoint) -> tuple[bool, str, str]:
    distribution = point.dist.name if point.dist else ""
    return distribution != OWN_DISTRIBUTION, distribution, point.name


def _load(point: EntryPoint, settings: Mapping[str, str]) -> Iterator[tuple[str, Integration]]:
    loaded = point.load()
    for integration in loaded(settings) if callable(loaded) else (loaded,):
        if not isinstance(integration, Integration):
            raise TypeError(f"{point.value} is no Integration")
        if integration is loaded and integration.name != point.name:
            raise ValueError(f"its name is {integration.name!r}")
        # Capabilities are read by many modules later; a wrong type is found here, where it does no
        # harm.
        msgspec.convert(msgspec.to_builtins(integration.capabilities), Capabilities)
        yield integration.name, integration
