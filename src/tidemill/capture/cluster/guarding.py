"""A writer of a sink that has no fence: it gives out no target once its capture, or the owner it works for, is gone.

A target of such a sink ends by itself, so long after it was made, and whoever takes over waits that long. So none may
be made later than that wait begins. Each is made first, and only then etcd is asked whether the capture's session,
the owner's term and the changefeed's epoch last still: they did when it was made. Whoever takes over, or runs the
changefeed again, begins to wait after they have ended.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tidemill.capture.etcd.client import EtcdClient
from tidemill.capture.etcd.documents import read_info
from tidemill.capture.etcd.keys import Keys
from tidemill.errors import MetadataError, SinkUnavailableError, SupersededError
from tidemill.flow.pipeline import Target
from tidemill.model.progress import Checkpoints, Window
from tidemill.model.receipt import Receipt
from tidemill.model.schedule import CaptureId, ChangefeedKey
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks import SinkWriter, Traits

Check = Callable[[], None]  # raises SupersededError where nothing may be begun any more. Blocks
OpenWriter = Callable[[str], SinkWriter]  # by its name


class GuardedWriter:
    """A ``SinkWriter`` that asks ``check`` behind each target it makes, before anybody gets to write to it."""

    def __init__(self, writer: SinkWriter, check: Check) -> None:
        self._writer, self._check = writer, check

    def recover(
        self,
        at: Checkpoints,
        tables: Collection[TableInfo] | None,
        state: Mapping[str, Any] | None,
        written_ts: Ts | None,
        term: str,
    ) -> None:
        self._writer.recover(at, tables, state, written_ts, term)

    def target(self, table: TableInfo, physical_id: int, window: Window) -> Target:
        target = self._writer.target(table, physical_id, window)
        self._check()
        return target

    def commit(self, to_ts: Ts, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return self._writer.commit(to_ts, receipts)

    def close(self) -> None:
        self._writer.close()


def guarded(open_writer: OpenWriter, traits: Traits, check: Check) -> OpenWriter:
    """What opens writers that ask first, of a sink that has no fence; of others as they are."""
    return open_writer if traits.has_fence else partial(_open_guarded, open_writer, check)


def _open_guarded(open_writer: OpenWriter, check: Check, name: str) -> SinkWriter:
    return GuardedWriter(open_writer(name), check)


def check_place(
    client: EtcdClient, keys: Keys, capture: CaptureId, changefeed: ChangefeedKey, epoch: int, term: int
) -> None:
    """That the capture is registered, the owner of ``term`` is the owner, and the changefeed is in its ``epoch``, which
    ends when it is paused and resumed, or removed. Blocks."""
    try:
        info = client.get(keys.info(changefeed))
        owners = client.prefix(keys.owners, first_created=True)
        is_there = client.get(keys.capture(capture)) is not None
    except MetadataError as error:
        raise SinkUnavailableError(
            f"etcd does not say whether capture {capture} may still write: {error} The batch is begun again."
        ) from error
    if not is_there or not owners or owners[0].mod_revision != term:
        raise SupersededError(
            f"capture {capture} may not write any more for the owner of term {term}: its session, or that owner, is "
            "gone. Others continue."
        )
    if info is None or read_info(info.value, changefeed).epoch != epoch:
        raise SupersededError(
            f"capture {capture} may not write any more for changefeed {changefeed} as it was in epoch {epoch}: it was "
            "begun anew, or removed, since."
        )
