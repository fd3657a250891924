"""``tidemill tso``: timestamps, of the upstream and as they are written."""

import re
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidemill.cli.options import Output, parse_ts
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import OutputFlag, connected
from tidemill.cli.remote.show import print_json
from tidemill.errors import UsageError
from tidemill.model.ts import compose, logical, physical_ms, show

_AN_OPTION = re.compile(r"--?[A-Za-z]")  # a moment may begin with a hyphen, but then a number follows


class _OrConvert(TyperGroup):
    """What is not the name of a command is a moment: ``tidemill tso -15m`` is ``tidemill tso convert -15m``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        moments = [arg for arg in args[:1] if arg not in self.commands and arg not in ("--help", "-h")]
        return super().parse_args(ctx, [*(["convert"] if moments else []), *args])


tso = typer.Typer(cls=_OrConvert, no_args_is_help=True, rich_markup_mode=None)


@tso.callback()
def group() -> None:
    """Timestamps: the upstream's own, and the time of any."""


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


@tso.command(context_settings={"ignore_unknown_options": True})
def convert(
    moment: Annotated[
        list[str], typer.Argument(help="A ts, a time such as 2026-03-01T10:15:00Z, now, or how long ago, such as -15m.")
    ],
    output: OutputFlag = Output.text,
) -> None:
    """Print the time of a ts and the ts of a time. The word convert may be left out.

    Example: tidemill tso convert 464613566054400000
    """
    for word in moment:
        if _AN_OPTION.match(word):
            raise typer.BadParameter(f"there is no option {word}. Write a moment, and --output behind it.")
    ts = parse_ts(" ".join(moment), "the moment")
    if ts is None:
        raise UsageError("there is no moment to convert. Write for example tidemill tso 2026-03-01T10:15:00Z")
    if output is Output.json:
        time = show(ts).partition(" (")[0]
        print_json({"ts": ts, "time": time, "physical_ms": physical_ms(ts), "logical": logical(ts)})
    else:
        typer.echo(show(ts))
