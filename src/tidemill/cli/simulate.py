"""``tidemill simulate``: run the control plane of a cluster against faults that a seed decides."""

import sys
from collections.abc import Iterator
from typing import Annotated

import orjson
import typer

from tidemill.cli.options import Output
from tidemill.errors import UsageError
from tidemill.testing.simulation import Outcome
from tidemill.testing.simulation import simulate as simulate_seed


def simulate(
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Run this one, and show what happened.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Run these, both ends included: 0..999.")] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="End each after so many steps. Default: when all is well."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", help="How to print what was found.")] = Output.text,
) -> None:
    """Run a simulated cluster in which captures crash and hang, messages are lost and tables come and go, and check
    what must always hold. The same seed gives the same run. Ends with 0 where all was well, with 1 where not.

    Example: tidemill simulate --seeds 0..99
    """
    is_single = seed is not None
    failed = count = 0
    for number in _numbers(seed, seeds):
        outcome = simulate_seed(number, steps=steps, keeps_trace=is_single)
        count, failed = count + 1, failed + bool(outcome.violation)
        if output is Output.json:
            typer.echo(orjson.dumps(_document(outcome)).decode())
        elif is_single:
            typer.echo("\n".join((*outcome.trace, _line(outcome))))
        elif outcome.violation:
            typer.echo(_line(outcome))
    if output is Output.text and not is_single:
        typer.echo(f"{count} seeds, {failed} of them with a violation.")
        if failed:
            typer.echo("Replay one with: tidemill simulate --seed N", err=True)
    sys.exit(1 if failed else 0)


def _numbers(seed: int | None, seeds: str | None) -> Iterator[int]:
    if (seed is None) == (seeds is None):
        raise UsageError("say which seeds to run: --seed N for one, or --seeds A..B for several.")
    if seed is not None:
        yield seed
        return
    first, dots, last = (seeds or "").partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"cannot read --seeds {seeds!r}: write the first and the last one, as in 0..99.")
    yield from range(int(first), int(last) + 1)


def _line(outcome: Outcome) -> str:
    if outcome.violation:
        return f"seed {outcome.seed}: {outcome.violation}"
    faults = ", ".join(f"{name} {count}" for name, count in outcome.faults.items())
    return (
        f"seed {outcome.seed}: all was well. {outcome.simulated_seconds:.1f} simulated seconds, {outcome.steps} steps, "
        f"{outcome.rows} rows written and {outcome.late_rows} refused as late, {outcome.lost_messages} messages lost, "
        f"{outcome.owners} owners; faults: {faults or 'none'}."
    )


def _document(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "violation": outcome.violation or None,
        "steps": outcome.steps,
        "simulated_seconds": outcome.simulated_seconds,
        "rows": outcome.rows,
        "late_rows": outcome.late_rows,
        "lost_messages": outcome.lost_messages,
        "owners": outcome.owners,
        "faults": outcome.faults,
        "trace": list(outcome.trace),
    }
