"""What the mounter's kernels say of a row and of its cells.

A kernel that meets bytes which make no sense returns ``failure(row, reason)`` and stops; ``OK`` otherwise.
"""

from tidemill.columnar.jit import kernel

OK = -1
NULL = -1  # the length of a cell that the row says is null
MISSING = -2  # the length of a cell that the row does not mention


@kernel
def failure(row: int, reason: int) -> int:
    return row * 256 + reason
