"""Chance that a run can repeat: `CHAOS_SEED=2 make chaos` takes another course, and the same one
each time."""

import os
import random


def seeded(name: object) -> random.Random:
    return random.Random(f"{os.environ.get('CHAOS_SEED', '1')}/{name}")
