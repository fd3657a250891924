"""Messages that are too large for their topic, and the compression of what a message carries.

    rows ──► messages ── one above max-message-bytes? ──► none              refused, with its size
                                                          handle-key-only   the columns of its handle key, and a mark
                                                          claim-check       the same and where the whole message lies

A batch is encoded as if every message were small enough. Only what turns out too large is encoded again, with the
shorter program of its protocol, and takes the place of what it was. Whole messages of claim checks are handed to a
``Store``, which the sink provides: a folder, a bucket. Compression comes first, so that it counts. Runs on executors.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.columnar.encoded import Encoded
from tidemill.config.values import boolean_of, number_from, word_of
from tidemill.errors import InvariantError, RowTooLargeError, SinkError, SinkUriError
from tidemill.flow.encoder.framing import OVERHEAD
from tidemill.flow.encoder.port import Option, Store
from tidemill.model.row import RowBatch, RowOp
from tidemill.model.table import ColumnInfo, TableInfo

Parts = tuple[Encoded, ...]  # values of rows; or keys and values, where rows share messages later


class Handling(StrEnum):
    NONE = "none"
    HANDLE_KEY_ONLY = "handle-key-only"
    CLAIM_CHECK = "claim-check"


class Compression(StrEnum):
    NONE = "none"
    SNAPPY = "snappy"  # a block, unframed
    LZ4 = "lz4"  # a frame


def _text(text: str) -> str:
    if not text:
        raise ValueError("a URI such as file:///data/claims or s3://bucket/claims")
    return text


_HANDLING, _COMPRESSION = word_of(*Handling), word_of(*Compression)
_FILE = "sink.kafka-config.large-message-handle."
COMPRESSION_OPTION: Mapping[str, Option] = {
    "large-message-handle-compression": Option(
        "large_message_handle_compression",
        lambda text: Compression(_COMPRESSION(text)),
        "none",
        "Compresses the value of every message, of debezium the key too: `none`, `snappy` (blocks) or `lz4` (frames).",
        f"{_FILE}large-message-handle-compression",
    ),
}
LARGE_OPTIONS: Mapping[str, Option] = {
    "max-message-bytes": Option(
        "max_message_bytes", number_from(1, most=1 << 30), "10485760", "Bytes of a message, at most."
    ),
    "large-message-handle-option": Option(
        "large_message_handle_option",
        lambda text: Handling(_HANDLING(text)),
        "none",
        "What becomes of a row whose message is too large. `none`: the changefeed fails. `handle-key-only`: its "
        "message holds the columns of the handle key. `claim-check`: likewise, and the whole message lies in a file.",
        f"{_FILE}large-message-handle-option",
    ),
    **COMPRESSION_OPTION,
    "claim-check-storage-uri": Option(
        "claim_check_storage_uri",
        _text,
        "required with `claim-check`",
        "Where whole messages lie, such as `file:///data/claims` or `s3://bucket/claims`.",
        f"{_FILE}claim-check-storage-uri",
    ),
    "claim-check-raw-value": Option(
        "claim_check_raw_value",
        boolean_of,
        "false",
        "A claim-check file is the message's value alone, not a JSON object with its key and value.",
        f"{_FILE}claim-check-raw-value",
    ),
}


@dataclass(frozen=True)
class LargeMessages:
    """The options of a protocol whose messages may be too large. A base of such protocols, which check the rest."""

    name: ClassVar[str]

    max_message_bytes: int = 10 << 20
    large_message_handle_option: Handling = Handling.NONE
    large_message_handle_compression: Compression = Compression.NONE
    claim_check_storage_uri: str = ""
    claim_check_raw_value: bool = False

    def __post_init__(self) -> None:
        if self.has_claim_checks and not self.claim_check_storage_uri:
            raise SinkUriError(
                "large-message-handle-option is claim-check, but nothing says where to keep large messages. "
                "Set claim-check-storage-uri, such as file:///data/claims or s3://bucket/claims."
            )

    @property
    def has_claim_checks(self) -> bool:
        return self.large_message_handle_option is Handling.CLAIM_CHECK

    def compressed(self, value: bytes) -> bytes:
        """One value: of a DDL or a resolved-ts."""
        return compressed(value, self.large_message_handle_compression)

    def all_compressed(self, values: Encoded) -> Encoded:
        return all_compressed(values, self.large_message_handle_compression)


def compressed(value: bytes, compression: Compression) -> bytes:
    codec = _codec(compression)
    return value if codec is None else codec.compress(value, asbytes=True)


def all_compressed(values: Encoded, compression: Compression) -> Encoded:
    """Each by itself: a consumer gets them one by one, so there is no codec that takes all at once."""
    codec = _codec(compression)
    if codec is None:
        return values
    data, starts = memoryview(values.payload), [0, *values.ends[:-1].tolist()]
    cells = [codec.compress(data[i:j], asbytes=True) for i, j in zip(starts, values.ends.tolist(), strict=False)]
    ends = np.cumsum(np.fromiter(map(len, cells), np.int64, len(cells)))
    return replace(values, payload=pa.py_buffer(b"".join(cells)), ends=ends)


def _codec(compression: Compression) -> Any:
    return None if compression is Compression.NONE else pa.Codec(compression.value)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a protocol makes a message of a row's parts."""

    sizes: Callable[[Parts], npt.NDArray[np.int64]]  # of each row's message, as it counts against the limit
    message: Callable[[Sequence[bytes]], tuple[bytes | None, bytes]]  # key and value as they would have been sent


def sizes_alone(parts: Parts) -> npt.NDArray[np.int64]:
    """Of messages without keys."""
    (values,) = parts
    return lengths(values) + OVERHEAD


LAYOUT_ALONE = Layout(sizes_alone, lambda cells: (None, cells[0]))


def lengths(parts: Encoded) -> npt.NDArray[np.int64]:
    return np.diff(parts.ends, prepend=0)


def fitted(
    protocol: LargeMessages,
    rows: RowBatch,
    parts: Parts,
    layout: Layout,
    shorter: Callable[[RowBatch], Parts],
    store: Store | None,
) -> Parts:
    """``parts``, those of messages that are too large replaced by what ``shorter`` makes of their rows.

    ``shorter`` writes the columns of the handle key. Of claim checks its rows have one more column, the last: where the
    whole message is (``location_place``). Raises SinkError where a message is too large all the same.
    """
    sizes, most = layout.sizes(parts), protocol.max_message_bytes
    over = np.flatnonzero(sizes > most)
    if not len(over):
        return parts
    if protocol.large_message_handle_option is Handling.NONE:
        raise RowTooLargeError(
            f"a row of table {rows.table.full_name} becomes a message of {int(sizes.max())} bytes, above "
            f"max-message-bytes ({most}). Raise it, in the sink URI and for the topic, or set "
            "large-message-handle-option, or leave the table's large columns out, or set on-too-large=quarantine.",
            _messages(parts, over, layout),
        )
    few = taken(rows, over)
    if protocol.has_claim_checks:
        few = _with_locations(few, _kept(protocol, [*_messages(parts, over, layout).values()], store))
    short = shorter(few)
    short_sizes = layout.sizes(short)
    if int(short_sizes.max()) > most:
        raise RowTooLargeError(
            f"a row of table {rows.table.full_name} becomes a message of {int(short_sizes.max())} bytes with its "
            f"handle key alone, above max-message-bytes ({most}). Raise it, in the sink URI and for the topic, or set "
            "on-too-large=quarantine.",
            _messages(parts, over[short_sizes > most], layout),
        )
    return tuple(_spliced(part, over, others) for part, others in zip(parts, short, strict=True))


def _messages(parts: Parts, places: npt.NDArray[np.int64], layout: Layout) -> dict[int, tuple[bytes | None, bytes]]:
    """Key and value of some rows, as they would have been sent."""
    cells = zip(*(_cells(part).take(pa.array(places)).to_pylist() for part in parts), strict=True)
    return {place: layout.message(each) for place, each in zip(places.tolist(), cells, strict=True)}


def location_place(table: TableInfo) -> int:
    """Of the column that ``fitted`` adds, behind the stored ones."""
    return len(table.stored_columns)


def key_columns(table: TableInfo) -> list[tuple[int, ColumnInfo]]:
    """The stored columns of the handle key, each with its place. Raises SinkError where the table has none."""
    keys = {column.offset for column in table.handle_key}
    if not keys:
        raise SinkError(
            f"cannot shorten a large message of table {table.full_name}: it has no handle key. Give the table a "
            "primary key, or raise max-message-bytes, in the sink URI and for the topic."
        )
    return [(place, column) for place, column in enumerate(table.stored_columns) if column.offset in keys]


def taken(rows: RowBatch, places: npt.NDArray[np.int64]) -> RowBatch:
    """Some changes, in the order of ``places``."""
    op = rows.op[places]
    new, old = (np.cumsum(rows.op != other) - 1 for other in (RowOp.DELETE, RowOp.INSERT))
    return replace(
        rows,
        op=op,
        start_ts=rows.start_ts[places],
        commit_ts=rows.commit_ts[places],
        new=rows.new.take(pa.array(new[places[op != RowOp.DELETE]])),
        old=rows.old.take(pa.array(old[places[op != RowOp.INSERT]])),
    )


def _with_locations(rows: RowBatch, locations: list[str]) -> RowBatch:
    column, op = pa.array(locations, pa.string()), rows.op
    return replace(
        rows,
        new=_widened(rows.new, column.filter(pa.array(op != RowOp.DELETE))),
        old=_widened(rows.old, column.filter(pa.array(op != RowOp.INSERT))),
    )


def _widened(batch: pa.RecordBatch, column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], [*batch.schema.names, "location"])


def _kept(protocol: LargeMessages, messages: Sequence[tuple[bytes | None, bytes]], store: Store | None) -> list[str]:
    """Store whole messages; where each lies. A name is used once: a row that is sent again has another file."""
    if store is None:
        raise InvariantError(
            "an encoder with claim checks was made without a store. This is a bug of the sink; report it."
        )
    base, locations = public_base(protocol.claim_check_storage_uri), []
    for key, value in messages:
        name = f"{uuid4()}.json"
        store(name, value if protocol.claim_check_raw_value else _claim(key, value))
        locations.append(f"{base}/{name}")
    return locations


def public_base(uri: str) -> str:
    """A storage URI as it stands in messages: without what may be secret, and without the last slash."""
    parts = urlsplit(uri)
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path
    return place.removesuffix("/")


def _claim(key: bytes | None, value: bytes) -> bytes:
    text = "null" if key is None else f'"{b64encode(key).decode()}"'
    return f'{{"key":{text},"value":"{b64encode(value).decode()}"}}'.encode()


def _cells(parts: Encoded) -> pa.Array:
    offsets = np.concatenate(([0], parts.ends))
    return pa.Array.from_buffers(pa.large_binary(), len(parts), [None, pa.py_buffer(offsets), parts.payload])


def _spliced(parts: Encoded, places: npt.NDArray[np.int64], others: Encoded) -> Encoded:
    order = np.arange(len(parts))
    order[places] = len(parts) + np.arange(len(places))
    cells = pa.concat_arrays([_cells(parts), _cells(others)]).take(pa.array(order))
    offsets = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells) + 1]
    return replace(parts, payload=cells.buffers()[2].slice(int(offsets[0])), ends=offsets[1:] - offsets[0])
