"""What is asked of a changefeed while it runs: files in its data-dir, written by commands and read by the process.

DATA_DIR/partitions            how many partitions rows are to be spread over. It stays: whoever finds that there
                               are others changes them, so a crash in the middle loses nothing
DATA_DIR/partitions.refused    why that cannot be, by the wish's id
"""

import asyncio
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from tidemill.capture.owner import ChangefeedOwner
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import DataDirError, SinkError, UsageError
from tidemill.log import get_logger
from tidemill.private import replace_private

log = get_logger("changefeed")

_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 5.0  # where Kafka is away


@dataclass(frozen=True, slots=True)
class Wish:
    partitions: int
    id: str  # of the wish: a refusal names it


def wish_for(folder: Path, partitions: int) -> Wish:
    """Written down for whoever runs the changefeed, now or later."""
    wish = Wish(partitions, secrets.token_hex(8))
    try:
        replace_private(folder / "partitions", orjson.dumps(asdict(wish)))
    except OSError as error:
        raise DataDirError(f"cannot write to data-dir {folder}: {error.strerror}. Check its rights.") from error
    return wish


def read_wish(folder: Path) -> Wish | None:
    """Raises DataDirError where there is something else."""
    path = folder / "partitions"
    try:
        document = orjson.loads(path.read_bytes())
        wish = Wish(document["partitions"], document["id"])
        if type(wish.partitions) is not int or wish.partitions < 1 or not isinstance(wish.id, str):
            raise ValueError("it holds no number of partitions")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataDirError(f"cannot understand {path}: {error}. Write it with tidemill partitions.") from error
    return wish


def refuse(folder: Path, wish: Wish, why: str) -> None:
    replace_private(folder / "partitions.refused", orjson.dumps({"id": wish.id, "why": why}))


def refusal(folder: Path, wish: Wish) -> str | None:
    """Why it cannot be; None: nobody said so."""
    try:
        document = orjson.loads((folder / "partitions.refused").read_bytes())
        return str(document["why"]) if document["id"] == wish.id else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def obey_wishes(owner: ChangefeedOwner, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
    """Until it is cancelled. What cannot be is told to whoever wished it; all else goes on."""
    failed: object = None
    while True:
        try:
            wish = await asyncio.to_thread(read_wish, folder)
            if wish is not None and wish != failed and wish.partitions != owner.meeting.partitions:
                failed = wish if await _refused(owner, folder, wish, clock) else None
        except DataDirError as error:
            if str(error) != failed:
                log.warning("what is asked of the changefeed cannot be read", reason=str(error))
            failed = str(error)
        await clock.sleep(_LOOK_SECONDS)


async def _refused(owner: ChangefeedOwner, folder: Path, wish: Wish, clock: Clock) -> bool:
    if await asyncio.to_thread(refusal, folder, wish) is not None:
        return True
    try:
        await owner.meeting.repartition(wish.partitions)
    except (UsageError, SinkError) as error:
        if isinstance(error, SinkError) and error.retryable:
            log.warning("the number of partitions cannot be changed yet", reason=str(error))
            await clock.sleep(_AGAIN_SECONDS)
            return False
        log.error("the number of partitions cannot be changed", partitions=wish.partitions, reason=str(error))
        await asyncio.to_thread(refuse, folder, wish, str(error))
        return True
    return False
