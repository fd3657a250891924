"""Loading the compiled loops before anybody waits for them.

They are compiled at their first use, and on a new machine that takes seconds: longer than some
clients give a request. A server uses them once, on a handful of records, before it says that it serves.
"""

import tempfile
from collections import deque
from itertools import chain
from pathlib import Path

from tidebox import blocks, raw_blocks
from tidebox.engine import Engine, Family
from tidebox.mvcc import Write, WriteType, version_key
from tidebox.raw import RawValue


def warm_up() -> None:
    """Use every loop that a request may need: scans, incremental scans, of transactions and of raw keys."""
    with tempfile.TemporaryDirectory(prefix="tidemill-warm-") as folder:
        engine = Engine(Path(folder))
        try:
            batch = engine.batch()
            batch.put(Family.WRITE, version_key(b"k", 4), Write(WriteType.PUT, 3, b"short").encode())
            batch.put(Family.WRITE, version_key(b"k", 2), Write(WriteType.PUT, 1).encode())
            batch.put(Family.DEFAULT, version_key(b"k", 1), b"long")
            batch.put(Family.RAW, version_key(b"k", 1), RawValue(b"v").encode())
            engine.write(batch)
            snapshot = engine.snapshot([Family.DEFAULT, Family.LOCK, Family.WRITE, Family.RAW])
            rows = chain(
                blocks.changes(snapshot, b"", b"", 0),
                blocks.visible(snapshot, b"", b"", 9, 9),
                raw_blocks.changes(snapshot, b"", b"", 0),
                raw_blocks.live(snapshot.scan(Family.RAW, b"", b""), 0, 9),
            )
            deque(rows, maxlen=0)
            del snapshot, rows
        finally:
            engine.close()
