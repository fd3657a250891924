"""Statements drawn by lot, with the answers that a real tidb-server gave: ours are the same.

``compare.py`` recorded them. A seed is a database of its own, two clients on two nodes.
"""

import json
import lzma
from itertools import groupby
from pathlib import Path

import pytest

from tests.tidebox.sql.compare import embedded
from tests.tidebox.sql.random_sql import Step, story

RECORDED = Path(__file__).parents[2] / "data" / "sql" / "random.jsonl.xz"


def recorded() -> dict[int, list[dict[str, object]]]:
    with lzma.open(RECORDED, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {seed: list(steps) for seed, steps in groupby(rows, lambda row: row["seed"])}


SEEDS = recorded()


@pytest.fixture(scope="module")
def ours():
    with embedded() as side:
        yield side


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_is_tidbs(ours, seed):
    with ours.clients(seed) as answer:
        for number, row in enumerate(SEEDS[seed]):
            step = Step(row["client"], row["sql"])
            expected = {key: value for key, value in row.items() if key not in ("seed", "client", "sql")}
            assert answer(step) == expected, f"seed {seed}, statement {number}: {step.sql}"


def test_a_seed_always_tells_the_same_story():
    def told() -> list[Step]:
        talk, steps = story(7), []
        step = next(talk, None)
        while step is not None and len(steps) < 200:
            steps.append(step)
            try:
                step = talk.send(len(steps) % 5 != 0)
            except StopIteration:
                break
        return steps

    assert told() == told()
