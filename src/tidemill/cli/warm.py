"""``tidemill warm``: prepare a machine, so that each later start is quick."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tidemill import demo as demonstration
from tidemill import kernelcache
from tidemill.capture.options import RunOptions
from tidemill.capture.running import end_spark, run_changefeed
from tidemill.cli import stopping
from tidemill.cli.box import missing_parts
from tidemill.cli.options import Output, configure_log
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.ts import Ts

_MASTER = "local[2]"
_ARCHIVED_SECONDS = 300.0  # for the JVM to end in, which writes the archive then
_FORMATS = ("canal-json&enable-tidb-extension=true", "csv")

# Rows of every type, as values and as keys: each has loops of its own.
_SQL = """
create database warm;
create table warm.kinds (id bigint unsigned primary key, i tinyint, y year, f float, d double, n decimal(20, 5),
    b bit(9), c char(5), v varchar(20) charset latin1, vb varbinary(9), t text, bl blob, e enum('a', 'b'),
    s set('a', 'b'), da date, dt datetime(6), ts timestamp(3), ti time(2), j json);
create table warm.keyed (s varchar(9), n decimal(9, 2), at datetime, d double, v int, primary key (s, n, at, d));
insert into warm.kinds values
    (1, -1, 2001, 0.5, 1e9, -1.5, 3, 'c', 'v', 'vb', 'text', 'blob', 'a', 'a,b', '2001-02-03', '2001-02-03 04:05:06.7',
        '2001-02-03 04:05:06', '-04:05:06.7', '{"k": [1, 2.5, "v", null, true]}'),
    (2, 2, 2002, 1e-7, 3, 4, 5, 'é', 'é', 'x', '日', x'ff00', 'b', '', '2002-02-03', '2002-02-03', '2002-02-03',
        '1:2:3', '"j"'),
    (3, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null);
insert into warm.keyed values ('a', 1.5, '2001-02-03', 2.5, 1), ('B', -2, '2002-02-03', -1, 2);
update warm.kinds set i = 7, d = 2.25, j = '[]', t = 'new' where id = 1;
update warm.keyed set v = 3;
delete from warm.kinds where id = 2;
"""


def warm(output: Annotated[Output, typer.Option("--output", help="How to print the result.")] = Output.text) -> None:
    """Compile what is compiled at its first use, and archive the classes of Spark, so that later starts are quicker.

    Takes a minute or two, once per machine; does nothing where that has been done. Rows to compile for come from the
    cluster in a box: without it only Spark is prepared, and the first rows of each type wait for the compiler.

    Example: tidemill warm
    """
    import orjson

    from tidemill.spark.classes import has_archive, recording
    from tidemill.spark.home import use_lean_home

    configure_log("warning")
    began = SYSTEM_CLOCK.monotonic()
    home = use_lean_home(_MASTER)
    missing = missing_parts()
    was_warm = home is None or (has_archive(home) and (kernelcache.is_complete() or bool(missing)))
    if home is not None and not was_warm:
        typer.echo("Compiling, and archiving the classes of Spark. This takes a minute or two, once …", err=True)
        with recording(home):
            if missing:
                _start_once()
            else:
                _run_once()
                kernelcache.set_complete()
    is_warm, is_compiled = home is not None and has_archive(home), kernelcache.is_complete()
    seconds = round(SYSTEM_CLOCK.monotonic() - began, 1)
    if output is Output.json:
        said = {"warm": is_warm, "was_warm": was_warm and is_warm, "compiled": is_compiled, "seconds": seconds}
        typer.echo(orjson.dumps(said).decode())
        return
    if not is_warm:
        typer.echo("No archive was made: SPARK_HOME is set, or there is no folder for caches, or this Java makes none.")
    else:
        typer.echo("Warm already." if was_warm else f"Warm now; it took {seconds:.0f} s.")
    if missing and not is_compiled:
        typer.echo(
            f"Nothing was compiled for rows: that takes the cluster in a box, which is not installed "
            f"({', '.join(missing)} missing). The first rows of each type wait for it instead. To do it now: "
            "pip install 'tidemill[box]', then tidemill warm."
        )


def _start_once() -> None:
    """Spark's session and one job, without a changefeed."""
    from tidemill.sinks.mysql.conflicts import warm_up as warm_up_conflicts
    from tidemill.spark.session import borrow_session

    warm_up_conflicts()
    with stopping.current().on_abandon(_abandon):
        lease = borrow_session(_MASTER)
        try:
            lease.session().sparkContext.parallelize(range(2), 2).map(abs).collect()
        finally:
            lease.release(_ARCHIVED_SECONDS)


def _run_once() -> None:
    """A small changefeed through Spark, from the demonstration's history and rows of every type."""
    from tidebox.upstream import EmbeddedUpstream
    from tidebox.warm import warm_up
    from tidemill.sinks.mysql.conflicts import warm_up as warm_up_conflicts
    from tidemill.spark.session import borrow_session

    warm_up()
    warm_up_conflicts()
    start_ts = Ts(demonstration.meta()["bootstrap_ts"])
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-warm-") as scratch,
        EmbeddedUpstream.start(load=demonstration.history_path(), sql_port=0) as cluster,
        stopping.current().on_abandon(_abandon),
    ):
        _execute(cluster.sql_addresses[0])
        end_ts = cluster.tso()
        lease = borrow_session(_MASTER)  # one session for both
        try:
            for at, form in enumerate(_FORMATS):
                folder = f"{scratch}/{at}"
                uri = f"file://{folder}/files?protocol={form}"
                options = RunOptions(cluster.pd_address, uri, Path(folder) / "data", start_ts, end_ts, _MASTER)
                run_changefeed(options, lambda: False, lambda feed: None, lambda snapshot: None)
        finally:
            lease.release(_ARCHIVED_SECONDS)


def _abandon() -> None:
    from tidemill.spark.classes import discard

    end_spark()
    discard()


def _execute(address: str) -> None:
    import pymysql

    host, _, port = address.rpartition(":")
    with pymysql.connect(host=host, port=int(port), user="root", autocommit=True) as connection:
        for statement in _SQL.split(";\n"):
            if statement.strip():
                connection.cursor().execute(statement)
