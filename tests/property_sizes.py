"""With how many made-up examples a property is tried: all of them in `make chaos`, a tenth of them
elsewhere, others in each run."""

from hypothesis import HealthCheck, settings

EXAMPLES = 50  # of a property that does not say how many
SHARE = 10
# What these find depends on how busy the machine is, and on the examples that chance made.
BY_CHANCE = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
WHOLE = "whole"
PART = "part"


def load_profile(is_whole: bool) -> None:
    """Before the tests are imported, which ask for their `examples`."""
    for name, count in ((WHOLE, EXAMPLES), (PART, EXAMPLES // SHARE)):
        settings.register_profile(
            name, deadline=None, max_examples=count, suppress_health_check=BY_CHANCE
        )
    settings.load_profile(WHOLE if is_whole else PART)


def examples(count: int) -> int:
    return count if settings.get_current_profile_name() == WHOLE else count // SHARE
