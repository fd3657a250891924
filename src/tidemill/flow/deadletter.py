"""Rows that cannot be decoded, put aside in a file so that the others go on.

    raw changes ── mount_or_set_aside ──► rows, and what was set aside ── quarantine ──► rows-<to-ts>-<id>.jsonl

A row is never skipped silently: with ``mounter.on-undecodable = "quarantine"`` its raw bytes are durable here before
the checkpoint passes it. There is a file per batch and physical table, named by where the batch ends for it, replaced
if the batch comes again, so each row stands here once.
"""

import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pyarrow as pa

from tidemill.errors import DataDirError, RowUndecodableError
from tidemill.flow.mounter import mount
from tidemill.model.progress import Checkpoints
from tidemill.model.receipt import Undecodable
from tidemill.model.row import RowBatch
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.private import make_private, replace_private, sync_folder

_NAME = re.compile(r"rows-(\d{20})-(\d+)\.jsonl")
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


def quarantine(folder: Path, end: Callable[[int], Ts], entries: Iterable[Undecodable]) -> None:
    """Make the entries of a batch durable, before the checkpoints move; ``end`` is where it ends for a physical id.

    What the batches after the checkpoint had put aside before a crash may come again in other pieces: the caller
    says so with ``forget_after`` when it resumes. No file where there are no entries. Raises DataDirError.
    """
    by_id: dict[int, list[Undecodable]] = {}
    for entry in sorted(set(entries), key=_order):
        by_id.setdefault(entry.physical_id, []).append(entry)
    if not by_id:
        return
    try:
        make_private(folder)
        sync_folder(folder.parent)
        for physical_id, found in by_id.items():
            path = folder / f"rows-{end(physical_id):020}-{physical_id}.jsonl"
            replace_private(path, b"".join(entry.to_json() + b"\n" for entry in found))
    except OSError as error:
        raise _explained(folder, error) from error


def forget_after(folder: Path, at: Checkpoints, ids: Collection[int] | None = None) -> None:
    """Remove what was put aside above the checkpoints, and what a crash left half written: it will come again. Of these
    physical ids; None: of all, and nobody else writes here."""
    try:
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            found = _NAME.fullmatch(path.name)
            if found is None:
                is_due = path.name.endswith(".tmp") and ids is None
            else:
                is_due = (ids is None or int(found[2]) in ids) and int(found[1]) > at.of(int(found[2]))
            if is_due:
                path.unlink()
        if folder.is_dir():
            sync_folder(folder)
    except OSError as error:
        raise _explained(folder, error) from error


def read_quarantine(folder: Path) -> list[Undecodable]:
    """All that was put aside, in commit order."""
    paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted((Undecodable.from_json(line) for p in paths for line in p.read_bytes().splitlines()), key=_order)


def _order(entry: Undecodable) -> tuple[int, int, bytes]:
    return entry.commit_ts, entry.start_ts, entry.key


def _explained(folder: Path, error: OSError) -> DataDirError:
    return DataDirError(
        f"cannot put undecodable rows aside in {folder}: {error.strerror or error}. Make it writable and give it "
        "space, then start again; the changefeed continues from its checkpoint and nothing is lost."
    )
