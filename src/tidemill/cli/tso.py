"""``tidemill tso``: the upstream's timestamps."""

import typer

from tidemill.cli.options import Output
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import OutputFlag, connected
from tidemill.cli.remote.show import print_json
from tidemill.model.ts import compose, show

tso = typer.Typer(help="The upstream's timestamps.", no_args_is_help=True, rich_markup_mode=None)


@tso.callback()
def group() -> None:
    """The upstream's timestamps."""


@tso.command()
@connected
def query(api: Api, output: OutputFlag = Output.text) -> None:
    """Print the upstream's current ts, for --start-ts and --target-ts.

    Example: tidemill tso query
    """
    found = api.post("/api/v2/tso")
    ts = compose(int(found["timestamp"]), int(found["logic_time"]))
    if output is Output.json:
        print_json({"ts": ts, "time": show(ts).partition(" (")[0]})
    else:
        typer.echo(str(ts))
