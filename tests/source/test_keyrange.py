"""Keys as people write them, and what a range of them is to the change stream."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import IncompatibleUpstreamError, UsageError
from tidemill.model.keys import KeyRange
from tidemill.model.keytext import KeyFormat, read_key
from tidemill.model.ts import Ts, compose
from tidemill.source.keyrange import KeySource, open_keys
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.keyspace import raw_v2
from tidemill.upstream.pd import PdClient

HEX, RAW, ESCAPED = KeyFormat.hex, KeyFormat.raw, KeyFormat.escaped


@pytest.mark.parametrize(
    ("text", "form", "key"),
    [
        pytest.param("", HEX, b"", id="an empty key"),
        pytest.param("6b00FF", HEX, b"k\x00\xff", id="hex, in either case"),
        pytest.param("6b", RAW, b"6b", id="raw is what it is"),
        pytest.param("ключ", RAW, "ключ".encode(), id="raw is UTF-8"),
        pytest.param(r"a\x00\xfFz", ESCAPED, b"a\x00\xffz", id="escaped, hex"),
        pytest.param(r"\377\0011", ESCAPED, b"\xff\x011", id="escaped, octal: three digits and no more"),
        pytest.param(r"\a\b\f\n\r\t\v\\\'\"", ESCAPED, b"\a\b\f\n\r\t\v\\'\"", id="escaped, by letter"),
        pytest.param(r"\\x41", ESCAPED, b"\\x41", id="a backslash that is itself escaped begins nothing"),
    ],
)
def test_a_key_is_read_as_its_format_says(text: str, form: KeyFormat, key: bytes) -> None:
    assert read_key(text, form, "--start-key") == key


@pytest.mark.parametrize(
    ("text", "form", "says"),
    [
        pytest.param("6b6", HEX, r"--start-key '6b6' is not a key in hex.*--format raw", id="half a byte"),
        pytest.param("0x6b", HEX, "is not a key in hex", id="a prefix"),
        pytest.param("६b", HEX, "is not a key in hex", id="digits of another script"),
        pytest.param("a\\", ESCAPED, "is not an escaped key", id="a backslash at the end"),
        pytest.param(r"\xg0", ESCAPED, "is not an escaped key", id="no hex digit"),
        pytest.param(r"\12", ESCAPED, "is not an escaped key", id="two octal digits"),
        pytest.param(r"\400", ESCAPED, r"has \\400, which is no byte", id="beyond a byte"),
        pytest.param("00" * 8193, HEX, "has 8193 bytes, and TiKV takes keys of 8192", id="longer than any key"),
    ],
)
def test_a_key_that_cannot_be_read_is_refused(text: str, form: KeyFormat, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_key(text, form, "--start-key")


@given(st.binary(max_size=40))
def test_any_key_can_be_written_in_hex_and_escaped(key: bytes) -> None:
    assert read_key(key.hex(), HEX, "--end-key") == key
    assert read_key("".join(f"\\x{byte:02x}" for byte in key), ESCAPED, "--end-key") == key


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        pytest.param(b"k", b"k", r"from --start-key 6b to --end-key 6b \(in hex\) is empty", id="empty"),
        pytest.param(b"l", b"k", "is inverted", id="inverted"),
        pytest.param(b"k\x00", b"k", "is inverted", id="inverted by a zero byte"),
    ],
)
def test_a_range_without_keys_is_refused(start: bytes, end: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        KeyRange(start, end)


@pytest.mark.parametrize(
    ("keys", "number", "start", "end"),
    [
        pytest.param(KeyRange(), 0, b"r\0\0\0", b"r\0\0\x01", id="the whole keyspace"),
        pytest.param(KeyRange(b"a"), 0, b"r\0\0\0a", b"r\0\0\x01", id="no end: to the last key"),
        pytest.param(KeyRange(b"", b"m"), 7, b"r\0\0\x07", b"r\0\0\x07m", id="no start, in another keyspace"),
        pytest.param(KeyRange(b"a", b"b"), (1 << 24) - 1, b"r\xff\xff\xffa", b"r\xff\xff\xffb", id="the last keyspace"),
    ],
)
def test_a_range_lies_behind_its_keyspaces_prefix(keys: KeyRange, number: int, start: bytes, end: bytes) -> None:
    span = KeySource(raw_v2(number), keys).span
    assert (span.start, span.end) == (encode_bytes(start), encode_bytes(end))


@pytest.mark.parametrize(
    ("seconds", "now_ts", "expected"),
    [
        pytest.param(3.0, compose(5_000, 9), compose(2_000), id="as much earlier as clocks may be behind"),
        pytest.param(0.0, compose(5_000, 9), compose(5_000), id="no interval: from the present millisecond on"),
        pytest.param(3.0, compose(1_000), 0, id="not below nothing"),
    ],
)
def test_a_changefeed_from_now_on_begins_a_little_earlier(seconds: float, now_ts: Ts, expected: int) -> None:
    assert KeyRange(safe_interval_seconds=seconds).before(now_ts) == expected


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[int, EmbeddedUpstream]]:
    with EmbeddedUpstream.start() as first, EmbeddedUpstream.start(api_version=2) as second:
        yield {1: first, 2: second}


def opened(upstream: EmbeddedUpstream, keys: KeyRange) -> KeySource:
    async def open_there() -> KeySource:
        async with PdClient(upstream.pd_address) as pd:
            return await open_keys(pd, keys)

    return asyncio.run(open_there())


def test_a_cluster_of_api_v2_has_a_default_keyspace(clusters: dict[int, EmbeddedUpstream]) -> None:
    assert opened(clusters[2], KeyRange()).keyspace == opened(clusters[2], KeyRange(keyspace="DEFAULT")).keyspace


def test_a_cluster_of_api_v1_is_refused_with_the_reason(clusters: dict[int, EmbeddedUpstream]) -> None:
    with pytest.raises(IncompatibleUpstreamError, match=r"does not serve RawKV of API V2.*storage.api-version = 2"):
        opened(clusters[1], KeyRange())


def test_a_keyspace_that_is_not_there_is_refused_by_name(clusters: dict[int, EmbeddedUpstream]) -> None:
    with pytest.raises(UsageError, match="there is no keyspace 'nowhere' in the cluster"):
        opened(clusters[2], KeyRange(keyspace="nowhere"))
