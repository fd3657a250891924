"""``tidemill partitions``: over how many partitions of its topics a changefeed spreads rows, and another number."""

import fcntl
import threading
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.capture.wishes import Wish, refusal, wish_for
from tidemill.cli import stopping
from tidemill.cli.options import Output, configure_log
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import SinkError, UsageError
from tidemill.model.ts import Ts, show

_LOOK_SECONDS = 0.1


def partitions(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Folder of the changefeed's progress, as given to tidemill run.")
    ] = Path("tidemill-data"),
    count: Annotated[
        int | None,
        typer.Option("--count", help="How many partitions there are to be. Default: say how many there are."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for a changefeed that runs. 0: do not wait.", min=0)
    ] = 60.0,
    output: Annotated[Output, typer.Option("--output", help="How to print the answer.")] = Output.text,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "warning",
) -> None:
    """Change over how many partitions a changefeed spreads the rows of its topics, more or fewer, while it runs.

    All rows up to some ts go out as before, then readers are told, then rows go to the new partitions. Needs
    open-protocol. A changefeed that does not run does it when it is started.

    Example: tidemill partitions --data-dir /tmp/to-kafka --count 9
    """
    configure_log(log_level)
    state = _state_of(data_dir)
    if count is None:
        _tell(state, output)
        return
    _check(state, count)
    wish = wish_for(data_dir, count)
    deadline = SYSTEM_CLOCK.monotonic() + wait
    while _is_running(data_dir):
        state = _state_of(data_dir)
        if {*_sink_state(state).get("topics", {}).values()} == {count} and _is_told(state):
            _tell(state, output)
            return
        why = refusal(data_dir, wish)
        if why is not None:
            raise SinkError(why)
        if SYSTEM_CLOCK.monotonic() > deadline or stopping.current().is_set():
            _later(wish, "The changefeed is still at it", output)
            return
        threading.Event().wait(_LOOK_SECONDS)
    _later(wish, "The changefeed does not run", output)


def _state_of(data_dir: Path) -> ChangefeedState:
    state = DataDir(data_dir).load()
    if state is None:
        raise UsageError(f"data-dir {data_dir} holds no changefeed. Give the one that tidemill run was started with.")
    return state


def _check(state: ChangefeedState, count: int) -> None:
    """What can be said without asking the changefeed."""
    if count < 1:
        raise UsageError(f"a topic cannot have {count} partitions. Choose 1 or more.")
    if not state.sink.startswith("kafka"):
        raise UsageError(f"the changefeed writes to {state.sink}, which has no partitions of topics.")


def _is_running(data_dir: Path) -> bool:
    with (data_dir / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _sink_state(state: ChangefeedState) -> dict[str, Any]:
    return state.sink_state or {}


def _is_told(state: ChangefeedState) -> bool:
    """Whether readers know of the last change, if there was one."""
    change = _sink_state(state).get("change")
    return change is None or bool(change["is_told"])


def _tell(state: ChangefeedState, output: Output) -> None:
    sink = _sink_state(state)
    topics, epoch = sink.get("topics", {}), sink.get("epoch", 0)
    cut_ts = (sink.get("change") or {}).get("cut_ts")
    if output is Output.json:
        typer.echo(orjson.dumps({"topics": topics, "epoch": epoch, "cut_ts": cut_ts}).decode())
        return
    for topic, found in sorted(topics.items()):
        since = f", since {show(Ts(cut_ts))}" if cut_ts is not None else ""
        typer.echo(f"Topic {topic}: rows go to {found} partitions{since}.")


def _later(wish: Wish, why: str, output: Output) -> None:
    if output is Output.json:
        typer.echo(orjson.dumps({"wanted": wish.partitions, "pending": True}).decode())
        return
    typer.echo(f"{why}; it goes to {wish.partitions} partitions as soon as it can.")
