"""A folder of ``tidemill run``, given to a cluster."""

from pathlib import Path
from typing import Any

from tidemill.capture.metadata import DataDir
from tidemill.cli.remote.client import Api, RefusedError
from tidemill.errors import DataDirError, TidemillError, UsageError

_EXISTS = "CDC:ErrChangeFeedAlreadyExists"


def given_over(api: Api, path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Have the changefeed of ``document`` continue that of the folder. The folder says whose it is before anybody is
    asked, so whatever dies on the way, two never run; the same command again brings it to its end."""
    if not (path / "changefeed.json").is_file():
        raise DataDirError(f"{path} is the folder of no changefeed: it has no changefeed.json. Give the one of a run.")
    folder = DataDir(path)
    folder.acquire()  # it must not be running
    try:
        was_given = folder.taker is not None
        state = folder.give(f"changefeed {document['changefeed_id']!r} in namespace {document['namespace']!r}")
        try:
            found: dict[str, Any] = api.post("/api/v2/changefeeds", {**document, "state": state})
        except TidemillError as error:
            if not was_given and _is_refusal(error):
                folder.keep()
            raise
        return found
    finally:
        folder.release()


def _is_refusal(error: TidemillError) -> bool:
    """Whether it is certain that the cluster has not taken it; anything else may have happened behind the answer."""
    return isinstance(error, UsageError) or (isinstance(error, RefusedError) and error.server_code == _EXISTS)
