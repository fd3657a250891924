"""Messages above the limit: refused, shortened to their handle key, or kept aside; and messages that are compressed."""

import json
import pickle
import re
from base64 import b64decode, b64encode
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.flow.encoder.samples import BUILT_MS, COMMIT_TS, FIRST, ITEM, SECOND, column, rows_of, table_of
from tidemill.errors import InvariantError, SinkError, SinkUriError
from tidemill.flow.encoder import FOR_QUEUES, CanalJsonQueue, Encoded, OpenProtocol, Simple, read_protocol
from tidemill.flow.encoder.framing import framed, framed_key
from tidemill.flow.encoder.large import Compression, Handling, LargeMessages, public_base, taken
from tidemill.flow.encoder.port import ClaimCheckProtocol
from tidemill.model.ddl import DdlEvent
from tidemill.model.row import RowBatch
from tidemill.model.table import ColumnType
from tidemill.model.ts import Ts

KINDS: dict[str, Any] = {
    "open-protocol": lambda **options: OpenProtocol(max_batch_size=1, **options),
    "canal-json": lambda **options: CanalJsonQueue(enable_tidb_extension=True, **options),
    "simple": lambda **options: Simple(**options),
}
EVENT = DdlEvent(Ts(COMMIT_TS), Ts(COMMIT_TS - 1), 0, 5, 5, "ALTER TABLE item ADD c INT", "shop", "item", ITEM)
NOISE = b64encode(Random(7).randbytes(900)).decode()  # no codec makes it smaller
LONG = {**FIRST, "id": 8, "note": NOISE}
ROWS = rows_of(ITEM, (None, FIRST), (None, LONG), (FIRST, SECOND), ({**LONG, "qty": 1}, LONG), (LONG, None))
LARGE = [1, 3, 4]
ALL = ("open-protocol", "canal-json", "simple")
LIMIT = 900  # between the messages of small rows and of large ones, in every protocol


class Shelf:
    """Keeps claim-check files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def __call__(self, name: str, data: bytes) -> None:
        assert name not in self.files
        self.files[name] = data


def encode(protocol: Any, rows: RowBatch = ROWS, store: Any = None) -> Encoded:
    encoded = protocol.encoder(BUILT_MS, store).encode(rows)
    assert isinstance(encoded, Encoded)
    return encoded


def messages(encoded: Encoded) -> list[tuple[bytes | None, bytes]]:
    keys = encoded.message_keys() or [None] * len(encoded)
    return list(zip(keys, encoded.messages(), strict=True))


def sent(kind: str, encoded: Encoded) -> list[Any]:
    """Each message's documents: of open-protocol its key and value, of the others the value."""
    if kind != "open-protocol":
        return [json.loads(value) for _, value in messages(encoded)]
    return [(json.loads(key[16:]), json.loads(value[8:])) for key, value in messages(encoded) if key is not None]


@pytest.mark.parametrize("kind", ALL)
def test_a_message_may_be_as_large_as_the_limit_and_no_larger(kind: str) -> None:
    rows = rows_of(ITEM, (None, FIRST))
    ((key, value),) = messages(encode(KINDS[kind](), rows))
    size = len(key or b"") + len(value) + 36  # which counts the lengths and the version of open-protocol in
    assert len(encode(KINDS[kind](max_message_bytes=size), rows)) == 1
    message = rf"shop\.item becomes a message of {size} bytes, above max-message-bytes \({size - 1}\)\. Raise it"
    with pytest.raises(SinkError, match=message):
        encode(KINDS[kind](max_message_bytes=size - 1), rows)


SHORT: dict[str, Any] = {
    "open-protocol": [
        [{"u": {"id": {"t": 8, "h": True, "f": 11, "v": 8}}}],
        [{"u": {"id": {"t": 8, "h": True, "f": 11, "v": 8}}, "p": {"id": {"t": 8, "h": True, "f": 11, "v": 8}}}],
        [{"d": {"id": {"t": 8, "h": True, "f": 11, "v": 8}}}],
    ],
    "canal-json": [
        {"old": None, "data": [{"id": "8"}]},
        {"old": [{"id": "8"}], "data": [{"id": "8"}]},
        {"old": None, "data": [{"id": "8"}]},
    ],
    "simple": [{"data": {"id": "8"}}, {"data": {"id": "8"}, "old": {"id": "8"}}, {"old": {"id": "8"}}],
}


@pytest.mark.parametrize("kind", ALL)
def test_only_what_is_too_large_is_shortened_to_its_handle_key(kind: str) -> None:
    whole = sent(kind, encode(KINDS[kind]()))
    found = sent(
        kind, encode(KINDS[kind](max_message_bytes=LIMIT, large_message_handle_option=Handling.HANDLE_KEY_ONLY))
    )
    assert [found[i] for i in (0, 2)] == [whole[i] for i in (0, 2)]
    for place, expected in zip(LARGE, SHORT[kind], strict=True):
        assert found[place] == shortened(kind, whole[place], expected, {"ohk": True}, {"onlyHandleKey": True})


def shortened(kind: str, whole: Any, expected: Any, mark: dict[str, Any], extension: dict[str, Any]) -> Any:
    """What a message becomes: marked, and with the columns that are expected."""
    if kind == "open-protocol":
        return {**whole[0], **mark}, *expected
    if kind == "canal-json":
        types = {"sqlType": {"id": -5}, "mysqlType": {"id": "bigint"}}
        return {**whole, **types, **expected, "_tidb": {**whole["_tidb"], **extension}}
    more = {"claimCheckLocation": extension["claimCheckLocation"]} if "claimCheckLocation" in extension else {}
    return {**{k: v for k, v in whole.items() if k not in ("data", "old")}, **more, "handleKeyOnly": True, **expected}


def test_the_marks_stand_where_ticdc_puts_them() -> None:
    (key, _), *_ = messages(encode(shortening("open-protocol"), rows_of(ITEM, (None, LONG))))
    assert key is not None
    assert key[16:].endswith(b',"rid":8,"t":1,"ohk":true}')
    ((_, value),) = messages(encode(shortening("simple"), rows_of(ITEM, (None, LONG))))
    assert value.endswith(b',"buildTs":1700000000123,"handleKeyOnly":true,"data":{"id":"8"}}')
    ((_, value),) = messages(encode(shortening("canal-json"), rows_of(ITEM, (None, LONG))))
    assert value.endswith(b'"data":[{"id":"8"}],"_tidb":{"commitTs":445644800000000005,"onlyHandleKey":true}}')


def shortening(kind: str, limit: int = LIMIT, **more: Any) -> Any:
    return KINDS[kind](max_message_bytes=limit, large_message_handle_option=Handling.HANDLE_KEY_ONLY, **more)


def claiming(kind: str, **more: Any) -> Any:
    uri = "s3://bucket/claims/?access-key=hidden&secret-access-key=secret"
    more = {"max_message_bytes": LIMIT, "claim_check_storage_uri": uri, **more}
    return KINDS[kind](large_message_handle_option=Handling.CLAIM_CHECK, **more)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("kind", ALL)
def test_a_claim_check_says_where_the_whole_message_lies(kind: str, compression: Compression) -> None:
    packed = {"large_message_handle_compression": compression}
    shelf, whole = Shelf(), messages(encode(KINDS[kind](**packed)))
    found = messages(encode(claiming(kind, **packed), store=shelf))
    for place, ((key, value), (whole_key, whole_value)) in enumerate(zip(found, whole, strict=True)):
        location = location_of(kind, key, value, compression)
        if place not in LARGE:
            assert (location, key, value) == (None, whole_key, whole_value)
            continue
        assert location is not None
        assert location.startswith("s3://bucket/claims/")
        name = location.removeprefix("s3://bucket/claims/")
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.json", name)
        file = json.loads(shelf.files.pop(name))
        assert file["key"] is None if whole_key is None else b64decode(file["key"]) == whole_key
        assert b64decode(file["value"]) == whole_value
    assert not shelf.files


def location_of(kind: str, key: bytes | None, value: bytes, compression: Compression) -> str | None:
    if kind == "open-protocol":
        assert key is not None
        document = json.loads(key[16:])
        assert "ohk" not in document
        return document.get("ccl")  # type: ignore[no-any-return]
    document = json.loads(unpacked(value, compression))
    if kind == "simple":
        assert ("claimCheckLocation" in document) == document.get("handleKeyOnly", False)
        return document.get("claimCheckLocation")  # type: ignore[no-any-return]
    assert "onlyHandleKey" not in document["_tidb"]
    return document["_tidb"].get("claimCheckLocation")  # type: ignore[no-any-return]


def unpacked(data: bytes, compression: Compression) -> bytes:
    if compression is Compression.NONE:
        return data
    if compression is Compression.LZ4:
        assert data[:4] == bytes.fromhex("04224d18")  # a frame
        return pa.input_stream(pa.py_buffer(data), compression="lz4").read()  # type: ignore[no-any-return]
    size, shift = 0, 0
    for byte in data:  # a block begins with its length once unpacked
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return pa.decompress(data, size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ALL)
def test_claim_checks_hold_the_columns_of_the_handle_key(kind: str) -> None:
    shelf = Shelf()
    whole, found = sent(kind, encode(KINDS[kind]())), sent(kind, encode(claiming(kind), store=shelf))
    for place, name, expected in zip(LARGE, shelf.files, SHORT[kind], strict=True):
        location = f"s3://bucket/claims/{name}"
        marks = {"ccl": location}, {"claimCheckLocation": location}
        assert found[place] == shortened(kind, whole[place], expected, *marks)


@pytest.mark.parametrize("kind", ["canal-json", "simple"])
def test_a_claim_check_may_be_the_raw_value(kind: str) -> None:
    shelf = Shelf()
    encode(claiming(kind, claim_check_raw_value=True), store=shelf)
    assert list(shelf.files.values()) == [encode(KINDS[kind]()).messages()[place] for place in LARGE]


def test_claim_checks_need_a_store() -> None:
    with pytest.raises(InvariantError, match="claim checks was made without a store"):
        encode(claiming("simple"))


@pytest.mark.parametrize("kind", ALL)
def test_a_handle_key_that_is_too_large_is_refused(kind: str) -> None:
    with pytest.raises(SinkError, match=r"shop\.item becomes a message of \d+ bytes with its handle key alone, above"):
        encode(shortening(kind, 100))


@pytest.mark.parametrize("kind", ALL)
def test_a_table_without_a_handle_key_cannot_be_shortened(kind: str) -> None:
    heap = table_of(column("a", ColumnType.VARCHAR), name="heap")
    with pytest.raises(SinkError, match=r"cannot shorten a large message of table shop\.heap: it has no handle key"):
        encode(shortening(kind), rows_of(heap, (None, {"a": "n" * 1000})))


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.LZ4])
def test_every_value_is_compressed_by_itself(compression: Compression) -> None:
    packed = {"large_message_handle_compression": compression}
    for kind in ("canal-json", "simple"):
        found = encode(KINDS[kind](**packed)).messages()
        assert [unpacked(value, compression) for value in found] == encode(KINDS[kind]()).messages()
    for most in (1, 16):
        plain, small = (OpenProtocol(max_batch_size=most, **options) for options in ({}, packed))
        assert encode(plain).message_keys() == encode(small).message_keys()
        theirs = [parts(value) for value in encode(small).messages()]
        ours = [parts(value) for value in encode(plain).messages()]
        assert [[unpacked(part, compression) for part in each] for each in theirs] == ours


def parts(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:8])
        found.append(data[8 : 8 + size])
        data = data[8 + size :]
    return found


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.LZ4])
def test_ddls_and_watermarks_are_compressed_but_not_the_empty_one(compression: Compression) -> None:
    for kind in ("canal-json", "simple"):
        plain, packed = KINDS[kind](), KINDS[kind](large_message_handle_compression=compression)
        for make in (lambda p: p.ddl(EVENT, BUILT_MS), lambda p: p.resolved(Ts(COMMIT_TS), BUILT_MS)):
            assert unpacked(make(packed).value, compression) == make(plain).value
            assert make(packed).partition == make(plain).partition
    bootstrap = Simple(large_message_handle_compression=compression).bootstrap(ITEM, BUILT_MS)
    assert unpacked(bootstrap.value, compression) == Simple().bootstrap(ITEM, BUILT_MS).value
    packed = OpenProtocol(large_message_handle_compression=compression)
    ddl, plain_ddl = packed.ddl(EVENT, BUILT_MS), OpenProtocol().ddl(EVENT, BUILT_MS)
    assert (ddl.key, unpacked(ddl.value[8:], compression)) == (plain_ddl.key, plain_ddl.value[8:])
    assert int.from_bytes(ddl.value[:8]) == len(ddl.value) - 8
    assert packed.resolved(Ts(COMMIT_TS), BUILT_MS) == OpenProtocol().resolved(Ts(COMMIT_TS), BUILT_MS)


def test_compression_counts_before_the_limit_does() -> None:
    rows = rows_of(ITEM, (None, {**FIRST, "note": "n" * 1000}))
    packed = Simple(max_message_bytes=LIMIT, large_message_handle_compression=Compression.SNAPPY)
    assert len(encode(packed, rows)) == 1


def test_rows_of_open_protocol_share_messages_once_they_fit() -> None:
    protocol = OpenProtocol(max_message_bytes=LIMIT, large_message_handle_option=Handling.HANDLE_KEY_ONLY)
    found = encode(protocol)
    assert found.changes is not None
    assert int(found.changes.sum()) == len(ROWS)
    assert len(found) < len(ROWS)


def test_partitions_are_kept_by_messages_that_are_replaced() -> None:
    encoded = shortening("simple").encoder(BUILT_MS).encode(ROWS, np.arange(5, dtype=np.int32))
    assert encoded.partitions.tolist() == [0, 1, 2, 3, 4]
    assert encoded.commit_ts.tolist() == ROWS.commit_ts.tolist()


def test_some_changes_of_a_batch() -> None:
    some = taken(ROWS, np.array([4, 0, 3]))
    assert encode(Simple(), some).messages() == [encode(Simple()).messages()[i] for i in (4, 0, 3)]


@pytest.mark.parametrize(
    ("uri", "base"),
    [
        ("s3://bucket/claims/?access-key=a&secret-access-key=b", "s3://bucket/claims"),
        ("file:///data/claims/", "file:///data/claims"),
        ("s3://user:password@bucket/x#y", "s3://bucket/x"),
        ("/data/claims", "/data/claims"),
    ],
)
def test_a_location_shows_no_secrets(uri: str, base: str) -> None:
    assert public_base(uri) == base


# Options


@pytest.mark.parametrize("kind", ALL)
def test_options_are_read_from_the_parameters_of_a_uri(kind: str) -> None:
    given = {
        "max-message-bytes": "1000",
        "large-message-handle-option": "Claim-Check",
        "large-message-handle-compression": "LZ4",
        "claim-check-storage-uri": "file:///claims",
        **({"enable-tidb-extension": "true"} if kind == "canal-json" else {}),
    }
    found = read_protocol(FOR_QUEUES, kind, given)
    assert isinstance(found, LargeMessages)
    assert isinstance(found, ClaimCheckProtocol)
    assert (found.max_message_bytes, found.large_message_handle_option) == (1000, Handling.CLAIM_CHECK)
    assert (found.large_message_handle_compression, found.claim_check_storage_uri) == (
        Compression.LZ4,
        "file:///claims",
    )
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("simple", {"large-message-handle-option": "drop"}, r"must be none, handle-key-only or claim-check\."),
        ("simple", {"large-message-handle-compression": "zstd"}, r"must be none, snappy or lz4\."),
        (
            "simple",
            {"large-message-handle-option": "claim-check"},
            r"Set claim-check-storage-uri, such as file:///data",
        ),
        ("simple", {"claim-check-storage-uri": ""}, r"'claim-check-storage-uri' is .*; it must be a URI such as"),
        ("canal-json", {"large-message-handle-option": "handle-key-only"}, r"Set enable-tidb-extension=true\."),
        (
            "open-protocol",
            {
                "large-message-handle-option": "claim-check",
                "claim-check-storage-uri": "file:///c",
                "claim-check-raw-value": "true",
            },
            r"claim-check-raw-value is not for open-protocol",
        ),
    ],
)
def test_what_is_wrong_with_them_is_named(kind: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(SinkUriError, match=message):
        read_protocol(FOR_QUEUES, kind, given)


def test_the_framing_of_a_whole_message_is_that_of_one_row() -> None:
    shelf = Shelf()
    encode(claiming("open-protocol"), store=shelf)
    file = json.loads(next(iter(shelf.files.values())))
    key, value = b64decode(file["key"]), b64decode(file["value"])
    assert (key, value) == (framed_key(key[16:]), framed(value[8:]))
