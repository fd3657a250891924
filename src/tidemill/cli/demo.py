"""``tidemill demo``: the whole way on one machine, checking its own result."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer

from tidemill import demo as demonstration
from tidemill import kernelcache
from tidemill.cli import stopping
from tidemill.cli.box import require_box
from tidemill.cli.options import Output, SparkConf, spark_conf_of
from tidemill.clock import SYSTEM_CLOCK
from tidemill.demo import live
from tidemill.errors import UpstreamUnavailableError, UsageError

_READY_SECONDS = 600.0  # a first start on a small machine compiles for minutes; whoever ends is noticed at once
_ARRIVAL_SECONDS = 600.0
_STOP_SECONDS = 60.0
_ABANDON_SECONDS = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the changefeed says of itself, and what SELECT showed of the live table."""

    summary: dict[str, Any]
    marks: list[demonstration.Mark]


def demo(
    keep: Annotated[Path | None, typer.Option("--keep", help="Write the files here and leave them.")] = None,
    spark_conf: SparkConf = None,
    output: Annotated[Output, typer.Option("--output", help="How to print the result.")] = Output.text,
) -> None:
    """Run SQL on an embedded TiDB, capture it through Spark into files, show it arriving, check the result.

    The cluster starts with the history of a real TiDB, which is captured and checked as well.

    Example: tidemill demo --keep /tmp/tidemill-demo
    """
    require_box("demo")
    spark_conf_of(spark_conf)
    began = SYSTEM_CLOCK.monotonic()

    def say(text: str) -> None:
        typer.echo(text, err=output is Output.json)

    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as scratch:
        folder = keep or Path(scratch) / "files"
        _make_empty(folder)
        outcome = _capture(Path(scratch), folder, say, spark_conf or [])
        comparisons = [demonstration.compare(folder, mark) for mark in (*demonstration.marks(), *outcome.marks)]
    _report(comparisons, outcome.summary, SYSTEM_CLOCK.monotonic() - began, keep, output)
    if not all(comparison.is_equal for comparison in comparisons):
        raise typer.Exit(1)


def _make_empty(folder: Path) -> None:
    """Each run is a cluster of its own, whose changes do not go to a folder that an earlier one has left."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot use --keep {folder}: it is not a folder. Choose another.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        first = next(folder.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"cannot use --keep {folder}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    if first is not None:
        raise UsageError(
            f"cannot use --keep {folder}: it holds {first.name!r}. "
            "Choose a folder that is empty or does not exist yet; what an earlier demo has left may be removed."
        )


def _capture(scratch: Path, folder: Path, say: Say, spark_conf: list[str]) -> Outcome:
    say("Starting an embedded TiDB: PD, three stores and two SQL nodes, with what a real TiDB had committed …")
    if not kernelcache.is_complete():
        say("(The first run on a machine compiles code: that takes a minute or two more.)")
    flags: dict[str, object] = {"stores": 3, "pd_port": 0, "sql_port": 0, "sql_nodes": 2, "resolved_interval": "200ms"}
    with _running("upstream", scratch, load=demonstration.history_path(), **flags) as upstream:
        ready = upstream.ready()
        meta = demonstration.meta()
        say(f"SQL at {' and '.join(ready['sql'])}. Starting a changefeed through Spark into canal-json files …")
        uri = f"file://{folder.resolve()}?protocol=canal-json&enable-tidb-extension=true"
        feed_flags: dict[str, object] = {"pd": ready["pd"], "start_ts": meta["bootstrap_ts"], "sink_uri": uri}
        feed_flags |= {"spark_conf": spark_conf}
        with _running("run", scratch, data_dir=scratch / "data", output="json", **feed_flags) as feed:
            feed.ready()
            _arrived(folder, meta["end_ts"], feed)
            say("The history of the real TiDB is in the files. Now SQL, live, on both nodes in turn:\n")
            marks = _run_live(ready["sql"], folder, feed, say)
            return Outcome(feed.stop(), marks)


def _run_live(addresses: list[str], folder: Path, feed: "_Process", say: Say) -> list[demonstration.Mark]:
    """Run the statements; after each, wait for what has come of it downstream."""
    marks = []
    with live.SqlClient(addresses[0]) as one, live.SqlClient(addresses[1]) as other:
        one.run(live.PREPARATION)
        last = one.now()
        for number, statement in enumerate(live.STATEMENTS, 1):
            client = (one, other)[number % 2]
            say(f"sql> {statement}")
            client.run(statement)
            began = SYSTEM_CLOCK.monotonic()
            now = client.now()
            _arrived(folder, now, feed)
            for arrival in live.arrivals(folder, last, now):
                say(f"     → {arrival.text}")
            say(f"       in the files after {SYSTEM_CLOCK.monotonic() - began:.1f} s")
            last = now
            if number in (live.MIDDLE, len(live.STATEMENTS)):
                marks.append(one.select("after the DDL" if number == live.MIDDLE else "at the end", now))
    return marks


def _arrived(folder: Path, ts: int, feed: "_Process") -> None:
    """Returns when the files are complete up to ``ts``."""
    deadline = SYSTEM_CLOCK.monotonic() + _ARRIVAL_SECONDS
    while live.checkpoint(folder) < ts:
        feed.check("ended before everything was captured")
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise _too_busy("nothing arrived", _ARRIVAL_SECONDS)
        feed.pause()


def _too_busy(what: str, seconds: float) -> UpstreamUnavailableError:
    return UpstreamUnavailableError(
        f"{what} within {seconds:.0f} s: the machine is too busy. Run 'tidemill warm', which compiles in advance, "
        "then try again."
    )


class _Process:
    """A command of ours in a process of its own. What it says is kept, and shown if it fails."""

    def __init__(self, name: str, scratch: Path, flags: dict[str, object], said: IO[bytes]) -> None:
        self._name = name
        self._said = said
        self._ready_file = scratch / f"{name}.json"
        pairs = [
            (flag, each) for flag, value in flags.items() for each in (value if isinstance(value, list) else [value])
        ]
        words = [w for flag, value in pairs for w in ("--" + flag.replace("_", "-"), str(value))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", name, "--ready-file", str(self._ready_file), *words],
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for us; we then end it in order
        )

    def ready(self) -> dict[str, Any]:
        deadline = SYSTEM_CLOCK.monotonic() + _READY_SECONDS
        while not self._ready_file.exists():
            self.check("did not start")
            if SYSTEM_CLOCK.monotonic() > deadline:
                raise _too_busy(f"tidemill {self._name} did not start", _READY_SECONDS)
            self.pause()
        document: dict[str, Any] = json.loads(self._ready_file.read_bytes())
        return document

    def pause(self) -> None:
        try:
            self._process.wait(0.05)
        except subprocess.TimeoutExpired:
            return

    def close(self) -> None:
        self._process.communicate()

    def check(self, what: str) -> None:
        if self._process.poll() is not None:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()
            raise UpstreamUnavailableError(f"tidemill {self._name} {what}. It said:\n{said}")

    def stop(self) -> dict[str, Any]:
        """End it in good order; what it printed."""
        self.check("ended before it was told to")
        self._process.terminate()
        printed, _ = self._process.communicate(timeout=_STOP_SECONDS)
        document: dict[str, Any] = json.loads(printed)
        return document

    def end(self, seconds: float = _STOP_SECONDS) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def _running(name: str, scratch: Path, **flags: object) -> Iterator[_Process]:
    with (scratch / f"{name}.err").open("w+b") as said:
        process = _Process(name, scratch, flags, said)
        with stopping.current().on_abandon(lambda: process.end(_ABANDON_SECONDS)):
            try:
                yield process
            finally:
                process.end()
                process.close()


def _report(
    comparisons: list[demonstration.Comparison],
    summary: dict[str, Any],
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
    typer.echo("Our files, applied up to each moment, against what SELECT * answered there:")
    for c in comparisons:
        verdict = "equal" if c.is_equal else f"DIFFERENT: {c.missing} missing, {c.extra} extra, {c.different} changed"
        typer.echo(f"  {c.mark.name:18} {c.mark.table:12} {len(c.mark.rows):5} rows  {verdict}")
    verdict = "All equal" if all(c.is_equal for c in comparisons) else "NOT equal"
    typer.echo(f"{verdict}; {seconds:.0f} s." + (f" The files are in {keep}." if keep else ""))
