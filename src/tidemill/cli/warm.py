"""``tidemill warm``: prepare a machine, so that each later start is quick."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tidemill import demo as demonstration
from tidemill.cli.options import Output, configure_log
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.ts import Ts

_MASTER = "local[2]"
_ARCHIVED_SECONDS = 300.0  # for the JVM to end in, which writes the archive then


def warm(output: Annotated[Output, typer.Option("--output", help="How to print the result.")] = Output.text) -> None:
    """Compile what is compiled at its first use, and archive the classes of Spark: later starts take half the time.

    Takes a minute, once on a machine; does nothing where that has been done.

    Example: tidemill warm
    """
    import orjson

    from tidemill.spark.classes import has_archive, recording
    from tidemill.spark.home import use_lean_home

    configure_log("warning")
    began = SYSTEM_CLOCK.monotonic()
    home = use_lean_home(_MASTER)
    was_warm = home is None or has_archive(home)
    if home is not None and not was_warm:
        with recording(home):
            _run_once()
    is_warm = home is not None and has_archive(home)
    seconds = round(SYSTEM_CLOCK.monotonic() - began, 1)
    if output is Output.json:
        typer.echo(orjson.dumps({"warm": is_warm, "was_warm": was_warm and is_warm, "seconds": seconds}).decode())
    elif not is_warm:
        typer.echo("No archive was made: SPARK_HOME is set, or there is no folder for caches, or this Java makes none.")
    else:
        typer.echo("Warm already." if was_warm else f"Warm now; it took {seconds:.0f} s.")


def _run_once() -> None:
    """A small changefeed through Spark, from the demonstration's history."""
    from tidemill.server import RunOptions, run_changefeed
    from tidemill.spark.session import close_session
    from tidemill.store.upstream import EmbeddedUpstream
    from tidemill.store.warm import warm_up

    warm_up()
    meta = demonstration.meta()
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-warm-") as scratch,
        EmbeddedUpstream.start(load=demonstration.history_path()) as cluster,
    ):
        uri = f"file://{scratch}/files?protocol=canal-json"
        options = RunOptions(
            cluster.pd_address, uri, Path(scratch) / "data", Ts(meta["bootstrap_ts"]), Ts(meta["end_ts"]), _MASTER
        )
        try:
            run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
        finally:
            close_session(_ARCHIVED_SECONDS)
