"""Values that were compressed, of every protocol that has such."""

import pyarrow as pa
import pytest

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, FIRST, ITEM, SECOND, rows_of
from tests.flow.encoder.test_open_protocol import parts
from tests.flow.reader.plain import all_changes, received
from tidemill.flow.encoder import CanalJson, OpenProtocol
from tidemill.flow.encoder.framing import framed
from tidemill.flow.reader.compression import Compression
from tidemill.flow.reader.registry import reader_of
from tidemill.model.event import ResolvedSeen, Unreadable
from tidemill.model.ts import Ts

ROWS = rows_of(ITEM, (None, FIRST), (FIRST, SECOND))
BOTH = [Compression.SNAPPY, Compression.LZ4]


def compress(compression: Compression, value: bytes) -> bytes:
    found: bytes = pa.Codec(compression.value).compress(value, asbytes=True)
    return found


@pytest.mark.parametrize("compression", BOTH)
def test_in_the_open_protocol_each_row_by_itself(compression: Compression) -> None:
    encoded = OpenProtocol().encoder(BUILT_MS).encode(ROWS)
    resolved = OpenProtocol().resolved(Ts(9), 0)
    values = [framed(*(compress(compression, part) for part in parts(value))) for value in encoded.messages()]
    messages = [*zip(encoded.message_keys() or [], values, strict=True), (resolved.key, resolved.value)]
    events = reader_of("open-protocol", compression).read(received(*messages))
    assert all_changes(events) == [(COMMIT_TS, None, FIRST), (COMMIT_TS + 1, FIRST, SECOND)]
    assert events.marks == [(1, ResolvedSeen(Ts(9)))]


@pytest.mark.parametrize("compression", BOTH)
def test_in_canal_json_the_whole_message(compression: Compression) -> None:
    plain = CanalJson(enable_tidb_extension=True).encoder(BUILT_MS).encode(ROWS).messages()
    events = reader_of("canal-json", compression).read(received(*((None, compress(compression, m)) for m in plain)))
    assert len(all_changes(events)) == 2


@pytest.mark.parametrize("compression", BOTH)
@pytest.mark.parametrize("value", [b"{}", b"", b"\xff\xff\xff\xff\x0f", b"\xff" * 20, b"\x04\x22\x4d\x18", b"\0"])
def test_what_is_not_compressed_like_this_is_unreadable(compression: Compression, value: bytes) -> None:
    ((_, mark),) = reader_of("canal-json", compression).read(received((None, value))).marks
    assert isinstance(mark, Unreadable)
    assert "compressed otherwise than large-message-handle-compression says" in mark.why


@pytest.mark.parametrize("compression", BOTH)
def test_a_value_that_would_become_huge_is_not_unpacked(compression: Compression) -> None:
    bomb = compress(compression, bytes(1 << 26))
    size = b"\xff\xff\xff\x7f" if compression is Compression.SNAPPY else b""
    ((_, mark),) = reader_of("canal-json", compression).read(received((None, size or bomb[: len(bomb) // 9]))).marks
    assert isinstance(mark, Unreadable)


def test_not_every_protocol_compresses() -> None:
    with pytest.raises(ValueError, match="messages of long-form are never compressed"):
        reader_of("long-form", Compression.LZ4)
