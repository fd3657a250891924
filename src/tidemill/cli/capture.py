"""``tidemill capture``: the servers of a cluster."""

from typing import Annotated

import typer

from tidemill.cli.options import Output, name_of
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import CaptureName, OutputFlag, connected
from tidemill.cli.remote.show import print_json, print_table, say
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import TidemillError

_POLL_SECONDS = 0.5

capture = typer.Typer(
    help="The captures of a cluster: list them, empty one before it stops.", no_args_is_help=True, rich_markup_mode=None
)


@capture.command("list")
@connected
def list_captures(api: Api, output: OutputFlag = Output.text) -> None:
    """List the captures, and which of them is the owner.

    Example: tidemill capture list --server http://127.0.0.1:8300
    """
    found = api.get("/api/v2/captures")["items"]
    if output is Output.json:
        print_json(
            [
                {
                    "id": e["id"],
                    "is-owner": e["is_owner"],
                    "address": e["address"],
                    "cluster-id": e.get("cluster_id", ""),
                }
                for e in found
            ]
        )
        return
    print_table(
        ["CAPTURE", "ADDRESS", "ROLE", "CLUSTER"],
        ([e["id"], e["address"], "owner" if e["is_owner"] else "", e.get("cluster_id", "")] for e in found),
        "There is no capture.",
    )


@capture.command()
@connected
def drain(
    api: Api,
    capture_id: CaptureName,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has no table any more.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="How many seconds to wait at most.")] = 600.0,
    output: OutputFlag = Output.text,
) -> None:
    """Move all tables of a capture to others, before it is stopped. It gets no new ones.

    Example: tidemill capture drain CAPTURE --wait
    """
    wanted = name_of(capture_id, "CAPTURE_ID")
    deadline = SYSTEM_CLOCK.monotonic() + timeout
    while True:
        left = api.post(f"/api/v2/captures/{wanted}/drain")["current_table_count"]
        if not left or not wait:
            break
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise TidemillError(
                f"capture {wanted} still has {left} tables after {timeout:g} s. It is being emptied; wait again, or "
                "look at its changefeeds with tidemill changefeed query."
            )
        from tidemill.cli import stopping

        stopping.current().wait(_POLL_SECONDS)
    if output is Output.json:
        print_json({"current_table_count": left})
    else:
        typer.echo(
            f"Capture {wanted} has no tables; it can be stopped."
            if not left
            else f"Capture {wanted} still has {left} tables."
        )


@capture.command()
@connected
def resign(api: Api, output: OutputFlag = Output.text) -> None:
    """Let another capture be the owner.

    Example: tidemill capture resign
    """
    api.post("/api/v2/owner/resign")
    say("Asked the owner to resign.", output)


@capture.command("log-level")
@connected
def log_level(
    api: Api,
    level: Annotated[str, typer.Argument(help="debug, info, warn or error.")],
    output: OutputFlag = Output.text,
) -> None:
    """Set the log level of the capture at --server, until it is started again.

    Example: tidemill capture log-level debug
    """
    api.post("/api/v2/log", {"log_level": level})
    say(f"The log level of the capture at {api.server} is {level.lower()}.", output)
