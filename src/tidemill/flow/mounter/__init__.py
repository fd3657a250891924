"""Raw changes + schema → rows, columns at a time.

    keys, values ─► headers split ─► cells ─┬─► integers, floats
    (of one table,   (split, legacy,        ├─► strings
     one schema)      handles)              ├─► decimals, times, JSON, vectors as text
                                            └─► missing: original defaults

In: a sorted batch of raw changes of one physical table. Out: a ``RowBatch``. Nothing is decoded row by
row in the interpreter; the loops are compiled (kernel.py) and run without the interpreter's lock.
"""

from tidemill.flow.mounter.mount import mount, mount_values
from tidemill.flow.mounter.pieces import fitting, rows_at_once

__all__ = ["fitting", "mount", "mount_values", "rows_at_once"]
