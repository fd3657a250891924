"""Rows that cannot be decoded, put aside in a file so that the others go on.

    raw changes ── mount_or_set_aside ──► rows, and what was set aside ── quarantine ──► rows-<to-ts>.jsonl

A row is never skipped silently: with ``mounter.on-undecodable = "quarantine"`` its raw bytes are durable here before
the checkpoint passes it. There is a file per batch, named by where the batch ends, replaced if the batch comes again,
so each row stands here once.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from tidemill.errors import DataDirError, RowUndecodableError
from tidemill.flow.mounter import mount
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.private import make_private, replace_private, sync_folder

_NAME = re.compile(r"rows-(\d{20})\.jsonl")
_NO_ROW = -1


def mount_or_set_aside(
    table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str, *, verify: bool = False
) -> tuple[RowBatch, list[Undecodable]]:
    """As ``mount``, but changes that cannot be decoded are given back beside the rows of all others, in order.

    Where all can be, which is nearly always, it costs what ``mount`` costs; each bad change costs so many more
    mounts as the number of changes has binary digits.
    """
    try:
        return mount(table, physical_id, changes, zone, verify=verify), []
    except RowUndecodableError:
        pass
    bad: list[Undecodable] = []
    good: list[pa.RecordBatch] = []
    begin = 0
    while begin < len(changes):
        rest = changes.slice(begin)
        first, error = _first_undecodable(table, physical_id, rest, zone, verify)
        good.append(rest if error is None else rest.slice(0, first))
        if error is None:
            break
        bad.append(_set_aside(table, physical_id, rest.slice(first, 1), error))
        begin += first + 1
    return mount(table, physical_id, pa.concat_batches(good), zone, verify=verify), bad


def _first_undecodable(
    table: TableInfo, physical_id: int, changes: pa.RecordBatch, zone: str, verify: bool
) -> tuple[int, RowUndecodableError | None]:
    """Its place and why; no error where all can be decoded."""

    def attempt(count: int) -> RowUndecodableError | None:
        try:
            mount(table, physical_id, changes.slice(0, count), zone, verify=verify)
        except RowUndecodableError as error:
            return error
        return None

    # Looks ahead in steps that double, so that many bad rows in a large batch do not cost a whole mount each.
    good, step = 0, 64
    while True:
        ahead = min(good + step, len(changes))
        found = attempt(ahead)
        if found is not None:
            break
        if ahead == len(changes):
            return _NO_ROW, None
        good, step = ahead, step * 2
    bad = ahead
    while bad - good > 1:
        half = (good + bad) // 2
        error = attempt(half)
        if error is None:
            good = half
        else:
            found, bad = error, half
    return bad - 1, found


def _set_aside(table: TableInfo, physical_id: int, change: pa.RecordBatch, error: RowUndecodableError) -> Undecodable:
    fields = change.to_pylist()[0]
    return Undecodable(
        table=table.full_name,
        physical_id=physical_id,
        key=fields["key"],
        start_ts=fields["start_ts"],
        commit_ts=fields["commit_ts"],
        value=fields["value"],
        old_value=fields["old_value"],
        column=error.column,
        reason=error.reason,
    )


def quarantine(folder: Path, to_ts: Ts, entries: Iterable[Undecodable]) -> Path | None:
    """Make the entries of the batch that ends at ``to_ts`` durable, before the checkpoint moves there.

    What the batches after the checkpoint had put aside before a crash may come again in other pieces: the caller
    says so with ``forget_after`` when it resumes. None, and no file, where there are no entries. Raises DataDirError.
    """
    in_order = sorted(set(entries), key=lambda e: (e.commit_ts, e.start_ts, e.key))
    target = folder / f"rows-{to_ts:020}.jsonl"
    try:
        if not in_order:
            if target.exists():
                target.unlink()
                sync_folder(folder)
            return None
        make_private(folder)
        sync_folder(folder.parent)
        replace_private(target, b"".join(entry.to_json() + b"\n" for entry in in_order))
    except OSError as error:
        raise _explained(folder, error) from error
    return target


def forget_after(folder: Path, checkpoint_ts: Ts) -> None:
    """Remove what was put aside above the checkpoint, and what a crash left half written: it will come again."""
    try:
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            found = _NAME.fullmatch(path.name)
            if path.name.endswith(".tmp") or (found and int(found[1]) > checkpoint_ts):
                path.unlink()
        if folder.is_dir():
            sync_folder(folder)
    except OSError as error:
        raise _explained(folder, error) from error


def read_quarantine(folder: Path) -> Iterator[Undecodable]:
    """All that was put aside, in commit order."""
    for path in sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name)):
        for line in path.read_bytes().splitlines():
            yield Undecodable.from_json(line)


def _explained(folder: Path, error: OSError) -> DataDirError:
    return DataDirError(
        f"cannot put undecodable rows aside in {folder}: {error.strerror or error}. Make it writable and give it "
        "space, then start again; the changefeed goes on from its checkpoint and nothing is lost."
    )
