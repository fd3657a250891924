"""``tidemill processor``: which capture works on which changefeed."""

import typer

from tidemill.cli.options import Output, name_of
from tidemill.cli.remote.client import Api
from tidemill.cli.remote.options import CaptureId, ChangefeedId, Name, Namespace, OutputFlag, connected, named
from tidemill.cli.remote.show import print_json, print_table

processor = typer.Typer(help="Which capture works on which changefeed.", no_args_is_help=True, rich_markup_mode=None)


@processor.command("list")
@connected
def list_processors(api: Api, output: OutputFlag = Output.text) -> None:
    """List the processors of all changefeeds.

    Example: tidemill processor list
    """
    found = api.get("/api/v2/processors")["items"]
    if output is Output.json:
        print_json(found)
        return
    rows = ([each["namespace"], each["changefeed_id"], each["capture_id"]] for each in found)
    print_table(["NAMESPACE", "CHANGEFEED", "CAPTURE"], rows, "There is no processor: no changefeed runs.")


@processor.command()
@connected
def query(
    api: Api,
    name: Name = None,
    capture_id: CaptureId = "",
    changefeed_id: ChangefeedId = None,
    namespace: Namespace = "default",
    output: OutputFlag = Output.text,
) -> None:
    """Show which tables of a changefeed a capture has.

    Example: tidemill processor query orders --capture-id CAPTURE
    """
    wanted, capture = named(name, changefeed_id), name_of(capture_id, "--capture-id")
    tables = api.get(f"/api/v2/processors/{wanted}/{capture}", namespace=namespace)["table_ids"] or []
    if output is Output.json:
        status = {"tables": {str(table): {"start-ts": 0} for table in tables}, "operation": None, "admin-job-type": 0}
        print_json({"status": status, "position": None})
    else:
        print_table(["TABLE"], ([table] for table in tables), f"Capture {capture} has no table of {wanted}.")
