"""The installed brokers: entry points of the group `trading_intents.brokers`, imported when one of
them is asked for. Connects to none."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from trading_intents.brokers.port import (
    COMMANDS_GROUP,
    ENTRY_POINT_GROUP,
    Capabilities,
    Integration,
    Integrations,
    Setting,
    Simulation,
)
from trading_intents.config import PREFIX, nearest, owner_of
from trading_intents.errors import StartupRefused
from trading_intents.secret import Secret
from trading_intents.telemetry import Log

OWN_DISTRIBUTION = "trading-intents"
BUILT_IN = "paper"
# Its tables of the quotes that organizations post, and of their symbols, which reference prices are
# read from.
POSTED_QUOTES = "paper_quotes"
QUOTED_SYMBOLS = "paper_symbols"

Variables = Mapping[str, Secret]  # by their names without our prefix
Commands = Mapping[str, Callable[..., Coroutine[Any, Any, None]]]
NO_VARIABLES: Variables = {}


class Registry:
    """`integrations` are not asked for before the first one of them is."""

    def __init__(
        self, integrations: Iterable[Integration], variables: Variables = NO_VARIABLES
    ) -> None:
        self._integrations = integrations
        self._variables = variables

    @cached_property
    def _by_name(self) -> dict[str, Integration]:
        found = sorted(self._integrations, key=lambda each: each.name)
        return {each.name: each for each in found}

    def find(self, name: str) -> Capabilities | None:
        found = self.integration(name)
        return found.capabilities if found else None

    def integration(self, name: str) -> Integration | None:
        return self._by_name.get(name)

    def settings_of(self, name: str) -> dict[str, str]:
        settings = _values(self._by_name[name].settings, self._variables)
        for variable, value in self._variables.items():
            if owner_of(variable, self._by_name) == name:
                settings[variable] = value.reveal()
        return settings

    def simulations(self) -> dict[str, Simulation]:
        """By the brokers' names."""
        found = self._by_name.items()
        return {
            name: each.simulate(self.settings_of(name)) for name, each in found if each.simulate
        }

    def all(self) -> list[Capabilities]:
        return [found.capabilities for found in self._by_name.values()]


def installed_brokers(log: Log, variables: Variables = NO_VARIABLES) -> Registry:
    return Registry(_load_all(log, variables), variables)


def integration_names() -> list[str]:
    """The names of the installed entry points, which are not imported for it."""
    return [point.name for point in _points(ENTRY_POINT_GROUP)]


def unknown_settings(variables: Variables) -> dict[str, str]:
    """Finds variables that start with an integration's name and that it does not declare, each with
    the most similar setting (or an empty text)."""
    points = dict[str, EntryPoint]()
    for point in _points(ENTRY_POINT_GROUP):
        points.setdefault(point.name, point)
    strangers = dict[str, str]()
    for name, point in points.items():
        own = [variable for variable in variables if owner_of(variable, points) == name]
        if own:
            strangers |= _unknown_of(point, own)
    return strangers


def _unknown_of(point: EntryPoint, own: Iterable[str]) -> dict[str, str]:
    try:
        declared = {each.name for each in point.load().settings}
    except (Exception, SystemExit):
        return {}  # it is left out, which is logged
    return {PREFIX + name: nearest(name, declared) for name in own if name not in declared}


def broker_command_groups(log: Log) -> dict[str, EntryPoint]:
    """The groups of commands that integrations bring for operators, not loaded yet."""
    groups = dict[str, EntryPoint]()
    for point in _points(COMMANDS_GROUP):
        if groups.setdefault(point.name, point) is not point:
            _log_left_out(log, point, ValueError(f"the name {point.name} is taken"))
    return groups


def _load_all(log: Log, variables: Variables) -> Iterator[Integration]:
    """One that cannot be loaded, or whose name is taken, is logged and left out; ours come first. A
    wrong setting of ours is refused."""
    taken = set[str]()
    for point in _points(ENTRY_POINT_GROUP):
        try:
            for integration in _load(point, variables):
                if integration.name in taken:
                    raise ValueError(f"the name {integration.name} is taken")
                taken.add(integration.name)
                yield integration
        except (Exception, SystemExit) as error:
            if isinstance(error, StartupRefused) and _is_own(point):
                raise
            _log_left_out(log, point, error)
    for variable, near in unknown_settings(variables).items():
        log.warning("unknown setting", variable=variable, did_you_mean=near)
    if BUILT_IN not in taken:
        raise StartupRefused(
            f"the broker {BUILT_IN} is not installed with this program: install it again, "
            "such as by "
            "`pip install --no-deps --no-build-isolation -e .` in a checkout"
        )


def _log_left_out(log: Log, point: EntryPoint, error: BaseException) -> None:
    reason = f"{type(error).__name__}: {error}"
    log.error("broker left out", broker=point.name, module=point.module, reason=reason)


def _points(group: str) -> list[EntryPoint]:
    """Ours come first."""
    return sorted(entry_points(group=group), key=lambda point: (not _is_own(point), _rank(point)))


def _is_own(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == OWN_DISTRIBUTION


def _rank(point: EntryPoint) -> tuple[str, str]:
    return point.dist.name if point.dist else "", point.name


def _load(point: EntryPoint, variables: Variables) -> Iterator[Integration]:
    loaded = point.load()
    made: Iterable[Integration] = (loaded,)
    if isinstance(loaded, Integrations):
        made = loaded.make(_values(loaded.settings, variables))
    for integration in made:
        if not isinstance(integration, Integration):
            raise TypeError(f"{point.value} is no Integration")
        if integration is loaded and integration.name != point.name:
            raise ValueError(f"its name is {integration.name!r}")
        # Capabilities are read by many modules later; a wrong type is found here, where it does no
        # harm.
        msgspec.convert(msgspec.to_builtins(integration.capabilities), Capabilities)
        _values(integration.settings, variables)
        shared = () if integration is loaded else loaded.settings
        yield replace(integration, settings=(*integration.settings, *shared))


def _values(settings: Iterable[Setting], variables: Variables) -> dict[str, str]:
    """The values of settings, or their defaults."""
    values = dict[str, str]()
    for each in settings:
        given = variables.get(each.name)
        values[each.name] = value = given.reveal() if given else each.default
        if not each.is_valid(value):
            # Without the value, which may be a secret.
            raise StartupRefused(f"{PREFIX}{each.name}: {each.rule}")
    return values
