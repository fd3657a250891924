"""``tidemill demo``: the whole way on one machine, checking its own result."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import orjson
import typer

from tidemill import demo as demonstration
from tidemill.cli.options import Output
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UpstreamUnavailableError, UsageError

_READY_SECONDS = 60.0


def demo(
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="Times the history's own pace; 0: as fast as it goes.")
    ] = 1.0,
    keep: Annotated[Path | None, typer.Option("--keep", help="Write the files here and leave them.")] = None,
    output: Annotated[Output, typer.Option("--output", help="How to print the result.")] = Output.text,
) -> None:
    """Replay a real TiDB's history on an embedded upstream, capture it through Spark into files, check the result.

    Example: tidemill demo --keep /tmp/tidemill-demo
    """
    began = SYSTEM_CLOCK.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as scratch:
        folder = keep or Path(scratch) / "files"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot use --keep {keep}: {error.strerror}. Choose a folder that you may write to."
            ) from error
        summary = _capture(Path(scratch), folder, speed, output)
        comparisons = [demonstration.compare(folder, mark) for mark in demonstration.marks()]
    _report(comparisons, summary, SYSTEM_CLOCK.monotonic() - began, keep, output)
    if not all(comparison.is_equal for comparison in comparisons):
        raise typer.Exit(1)


def _capture(scratch: Path, folder: Path, speed: float, output: Output) -> dict[str, int]:
    ready = scratch / "upstream.json"
    history, meta = demonstration.history_path(), demonstration.meta()
    _say(output, "Starting an embedded PD and three stores, replaying what a real TiDB committed …")
    upstream = subprocess.Popen(_command("upstream", stores=3, pd_port=0, load=history, replay=speed, ready_file=ready))
    try:
        pd = _wait_for(ready, upstream)["pd"]
        _say(output, f"Capturing from PD {pd} through Spark into canal-json files …")
        command = _command(
            "run",
            pd=pd,
            start_ts=meta["bootstrap_ts"],
            target_ts=meta["end_ts"],
            data_dir=scratch / "data",
            sink_uri=f"file://{folder.resolve()}?protocol=canal-json&enable-tidb-extension=true",
            output="json",
        )
        run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if run.returncode:
            raise typer.Exit(run.returncode)
        document: dict[str, int] = json.loads(run.stdout)
        return document
    finally:
        upstream.terminate()
        upstream.wait()


def _command(name: str, **options: object) -> list[str]:
    flags = [word for flag, value in options.items() for word in ("--" + flag.replace("_", "-"), str(value))]
    return [sys.executable, "-m", "tidemill", name, *flags]


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = SYSTEM_CLOCK.monotonic() + _READY_SECONDS
    while not path.exists():
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            if SYSTEM_CLOCK.monotonic() < deadline:
                continue
        raise UpstreamUnavailableError("the embedded upstream did not start; its own message is above.")
    document: dict[str, str] = json.loads(path.read_bytes())
    return document


def _report(
    comparisons: list[demonstration.Comparison],
    summary: dict[str, int],
    seconds: float,
    keep: Path | None,
    output: Output,
) -> None:
    if output is Output.json:
        checks = [
            {
                "mark": c.mark.name,
                "table": c.mark.table,
                "rows": len(c.mark.rows),
                "missing": c.missing,
                "extra": c.extra,
                "different": c.different,
            }
            for c in comparisons
        ]
        typer.echo(orjson.dumps({"checks": checks, "run": summary, "seconds": round(seconds, 1)}).decode())
        return
    rows, ddls, batches = summary["rows"], summary["ddls"], summary["batches"]
    typer.echo(f"\nCaptured {rows:,} row changes and {ddls} DDLs in {batches} batches.")
    typer.echo("Our files, applied up to each moment, against what TiDB answered to SELECT * there:")
    for c in comparisons:
        verdict = "equal" if c.is_equal else f"DIFFERENT: {c.missing} missing, {c.extra} extra, {c.different} changed"
        typer.echo(f"  {c.mark.name:18} {c.mark.table:10} {len(c.mark.rows):5} rows  {verdict}")
    verdict = "All equal" if all(c.is_equal for c in comparisons) else "NOT equal"
    typer.echo(f"{verdict}; {seconds:.0f} s." + (f" The files are in {keep}." if keep else ""))


def _say(output: Output, text: str) -> None:
    typer.echo(text, err=output is Output.json)
