"""Benchmarks for the tests of the harness: they measure nothing."""

from typing import Any


def fine() -> list[dict[str, Any]]:
    return [
        {"name": "fine.fast", "value": 2_000_000.0, "unit": "rows/s", "floor": 1_000_000.0, "ratio": 2.0},
        {"name": "fine.slow", "value": 3.5, "unit": "s", "floor": None, "ratio": None},
    ]


def broken() -> list[dict[str, Any]]:
    raise RuntimeError("the machine is on fire")


def careless() -> list[dict[str, Any]]:
    return [{"name": "careless.one", "value": 1}]
