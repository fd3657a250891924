"""``tidemill span``: where the spans of a changefeed are. A table is one span, and is moved as a whole."""

import typer

from tidemill.cli.changefeed import ask_to_move, ask_to_rebalance
from tidemill.cli.options import Output
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import ChangefeedId, Name, Namespace, OutputFlag, Table, To, connected, named

span = typer.Typer(help="Move the spans of a changefeed between captures.", no_args_is_help=True, rich_markup_mode=None)


@span.command()
@connected
def move(
    api: Api,
    name: Name = None,
    table: Table = 0,
    to: To = "",
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Move a table's span to another capture; the same as changefeed move-table.

    Example: tidemill span move orders --table 112 --to CAPTURE
    """
    ask_to_move(api, named(name, changefeed_id), table, to, namespace, output)


@span.command()
@connected
def rebalance(
    api: Api,
    name: Name = None,
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Spread a changefeed's spans over all captures anew; the same as changefeed rebalance.

    Example: tidemill span rebalance orders
    """
    ask_to_rebalance(api, named(name, changefeed_id), namespace, output)
