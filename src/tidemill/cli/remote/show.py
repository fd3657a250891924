"""How answers are shown: tables, times, lags."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from rich.cells import cell_len

from tidemill.cli.options import Output
from tidemill.cli.remote.client import Api, dumped
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import TidemillError
from tidemill.model.ts import Ts, compose, lag_seconds, show

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def print_json(document: Any) -> None:
    typer.echo(dumped(document))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """``empty``: the message shown when there are no rows."""
    found = [[str(cell) for cell in row] for row in rows]
    if not found:
        typer.echo(empty, err=True)
        return
    typer.echo("\n".join(in_columns([columns, *found])))


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the cells below each other. They are as long as it takes: nothing is cut off, on a terminal either."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [zip(row, widths, strict=True) for row in rows]
    return ["  ".join(cell + " " * (width - cell_len(cell)) for cell, width in line).rstrip() for line in lines]


def say(text: str, output: Output) -> None:
    """What was done, for people; who reads JSON sees it by the exit code."""
    if output is Output.text:
        typer.echo(text)


def now_ts(api: Api) -> Ts:
    """The upstream's time, or ours where it does not answer."""
    try:
        found = api.post("/api/v2/tso")
        return compose(int(found["timestamp"]), int(found["logic_time"]))
    except TidemillError:
        return compose(int(SYSTEM_CLOCK.now() * 1000))


def lag(ts: int, now: Ts) -> str:
    return duration(lag_seconds(ts, (now >> 18) / 1000))


def duration(seconds: float) -> str:
    """For people: ``1.2 s``, ``5 min``, ``3 h 20 min``, ``2 d 1 h``."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def since(moment: str | None, now: Ts) -> str:
    """``moment`` as the API tells it."""
    if not moment:
        return ""
    at = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    seconds = (datetime.fromtimestamp((now >> 18) / 1000, tz=UTC) - at).total_seconds()
    return f"for {duration(max(0.0, seconds))}"


def moment_of(ts: int) -> str:
    return show(ts) if ts else "none"
