"""A folder of ``tidemill run``, given to a cluster."""

from pathlib import Path
from typing import Any

from tidemill.capture.metadata import DataDir
from tidemill.cli.remote.client import Api, RefusedError
from tidemill.errors import DataDirError, TidemillError, UsageError

_FEEDS = "/api/v2/changefeeds"
_EXISTS = "CDC:ErrChangeFeedAlreadyExists"
_MISSING = "CDC:ErrChangeFeedNotExists"


def given_over(api: Api, path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Have the changefeed of ``document`` continue that of the folder. The folder says whose it is before anybody is
    asked, so whatever dies on the way, two never run; repeating the command completes it. Once that is known,
    the folder's state is never the start of a changefeed again: the one that has it is further on."""
    if not (path / "changefeed.json").is_file():
        raise DataDirError(f"{path} is the folder of no changefeed: it has no changefeed.json. Give the one of a run.")
    folder = DataDir(path)
    folder.acquire()  # it must not be running
    try:
        was_given = folder.taker is not None
        state = folder.give(f"changefeed {document['changefeed_id']!r} in namespace {document['namespace']!r}")
        if folder.is_taken:
            _check_there(api, path, document)
        try:
            found: dict[str, Any] = api.post(_FEEDS, {**document, "state": state})
        except TidemillError as error:
            if not was_given and _is_refusal(error):
                folder.keep()
            raise
        folder.let_go()
        return found
    finally:
        folder.release()


def _check_there(api: Api, path: Path, document: dict[str, Any]) -> None:
    """Raises DataDirError where the changefeed that has the folder is not there."""
    try:
        api.get(f"{_FEEDS}/{document['changefeed_id']}", namespace=document["namespace"])
    except RefusedError as error:
        if error.server_code != _MISSING:
            raise
        raise DataDirError(
            f"{path} has been taken over before, and {api.server} has no changefeed {document['changefeed_id']!r} now: "
            "it is another cluster's, or was removed. It went on from where the folder stands, so another one must not "
            "begin there. Ask the cluster that has it, or create a changefeed that begins with --initial-scan."
        ) from error


def _is_refusal(error: TidemillError) -> bool:
    """Whether it is certain that the cluster has not taken it; anything else may have happened behind the answer."""
    return isinstance(error, UsageError) or (isinstance(error, RefusedError) and error.server_code == _EXISTS)
