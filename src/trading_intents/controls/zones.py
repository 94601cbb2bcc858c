"""The time zones that a window may be in. A name that is not in this list is never used as a path."""

from importlib.resources import files

NO_ZONES = {"Factory"}  # a placeholder for "not set up yet", at UTC


def read_zones() -> frozenset[str]:
    """The IANA names in the pinned tzdata: the same on every machine."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split()) - NO_ZONES
