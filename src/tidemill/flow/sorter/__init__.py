"""The sorter: the capture's buffer of raw changes on local disk, released in commit order.

    puller ── raw changes, resolved-ts ──► Sorter ── plan(from, to] ──► SpanSlices
                                             │                              │ pickled
                                             ▼ segments (Arrow IPC files)   ▼
                                          local disk ──── mapped ────► read_slices ──► mounter
                                                      └── by Arrow Flight ──┘

``Sorter`` lives in the capture's process and is the only writer. ``read_slices`` runs on executors
and has no state: what it needs to find, check and order the changes is in the description it gets. Where an executor
does not see the files, the capture serves them.

spans      which spans are followed, over which interval, and how far they are resolved
order      many batches into one: sorted by ``(commit_ts, start_ts, key)``, each change once
gather     rows from many places into one, in one pass
arrowfile  what an Arrow file has around its columns
segment    one file: how it is written, what of it is remembered, how a range of it is mapped
slices     the description of a batch and its reader
large      a transaction too large to be held, read in pieces
shelf      the segments that are there to be asked for
serving    those for executors on other hosts, by Arrow Flight; fetching is their side, wire what both say
estimate   how many rows and bytes lie up to a ts, without reading a file
sorter     the buffers in memory, the segments on disk, back-pressure, release
"""

from tidemill.flow.sorter.large import LargeTransaction
from tidemill.flow.sorter.shelf import Shelf
from tidemill.flow.sorter.slices import BATCH_ROWS, KeyRange, SpanSlices, Supply, pick_keys, read_portions, read_slices
from tidemill.flow.sorter.sorter import Sorter, SorterStats

__all__ = [
    "BATCH_ROWS",
    "KeyRange",
    "LargeTransaction",
    "Shelf",
    "Sorter",
    "SorterStats",
    "SpanSlices",
    "Supply",
    "pick_keys",
    "read_portions",
    "read_slices",
]
