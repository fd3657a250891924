"""How often, and from which seed, a test repeats what chance decides.

``make test`` takes a few rounds from a fixed seed; ``make soak ROUNDS=200 SEED=7`` takes the numbers that it is given.
Tests that scale are marked ``rounds``; those that are only worth their time in a soak are marked ``soak``. Properties
are tried on more ``examples`` there. Where a
test fails, the seed and the number of rounds to repeat it with are in the report.
"""

import os

_ROUNDS, _SEED = "TIDEMILL_ROUNDS", "TIDEMILL_SEED"
used: list[int] = []  # the seeds that the test at hand has asked for


def is_soak() -> bool:
    return _ROUNDS in os.environ


def rounds(usual: int) -> int:
    """How many to take: ``usual`` in ``make test``, what was asked for in ``make soak``."""
    return int(os.environ.get(_ROUNDS, usual))


def seed(usual: int) -> int:
    """What to draw from. It is told if the test fails."""
    chosen = int(os.environ.get(_SEED, usual))
    used.append(chosen)
    return chosen


def seeds(usual: int) -> range:
    """For a test that is repeated by its parameters: as many as ``rounds`` says, from the seed that was given on."""
    first = int(os.environ.get(_SEED, 0))
    return range(first, first + rounds(usual))


def examples(usual: int) -> int:
    """How many a property is tried on: in ``make test``, which is run often, a third of them and at least twenty; in a
    soak all of them, or as many rounds as were asked for."""
    return max(usual, rounds(usual)) if is_soak() else min(usual, max(20, usual // 3))


def replay_command(nodeid: str, seed: int, rounds: int | None) -> str:
    """What to type to see a failure again."""
    asked = f" ROUNDS={rounds}" if rounds is not None else ""
    return f"make soak{asked} SEED={seed} TESTS='{nodeid}'"
