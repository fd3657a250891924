"""Scattered values are copied side by side, whatever the pieces in which there is room for them."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.sorter.sorter_changes import batch, change
from tests.rounds import examples
from tidemill.columnar.gather import Scattered
from tidemill.flow.sorter.arrowfile import ALIGNMENT, frame
from tidemill.model.change import RAW_CHANGE_SCHEMA

columns = st.lists(st.lists(st.binary(max_size=12), max_size=8), max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(columns=columns, room=st.integers(1, 30), data=st.data())
def test_values_are_copied_in_order_through_any_room(
    columns: list[list[bytes]], room: int, data: st.DataObject
) -> None:
    values = [value for column in columns for value in column]
    order = data.draw(st.lists(st.sampled_from(range(len(values))), max_size=20)) if values else []
    is_as_it_is = data.draw(st.booleans())
    arrays = [pa.array([b"skipped", *column], pa.binary()).slice(1) for column in columns]
    scattered = Scattered.of(arrays, None if is_as_it_is else np.array(order, dtype=np.int64))
    wanted = values if is_as_it_is else [values[i] for i in order]

    copied, row, skip = b"", 0, 0
    while row < len(wanted):
        target = np.empty(room, dtype=np.uint8)
        count, row, skip = scattered.copy_to(target, row, skip)
        copied += target[:count].tobytes()
    assert copied == b"".join(wanted)
    assert scattered.bytes == len(copied)
    assert scattered.offsets().tolist() == [0, *np.cumsum([len(v) for v in wanted], dtype=int).tolist()]


def test_a_frame_is_what_pyarrow_expects_around_a_batch() -> None:
    changes = batch([change(ts, b"k" * (ts % 50)) for ts in range(1, 400)])
    buffers = [b for column in changes.columns for b in column.buffers() if b is not None]
    sizes = [399 * 8, 399 * 8, 399, *(n for c in changes.columns[3:] for n in (1600, c.buffers()[2].size))]
    around = frame(399, sizes)
    file = bytearray(around.head + bytes(around.body_bytes) + around.tail)
    for place, buffer, size in zip(around.places, buffers, sizes, strict=True):
        assert place % ALIGNMENT == 0
        file[place : place + size] = buffer.to_pybytes()[:size]
    with pa.ipc.open_file(pa.py_buffer(bytes(file))) as reader:
        assert reader.schema == RAW_CHANGE_SCHEMA
        read = reader.get_batch(0)
    read.validate(full=True)
    assert read == changes
