"""The trading vocabulary that every feature speaks. Pure values: no I/O, no clock, no rules of one feature."""

from enum import StrEnum


class Environment(StrEnum):
    PAPER = "paper"
    LIVE = "live"
