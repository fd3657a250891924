"""Rows of segments over Arrow Flight: the same as from the file, or an error that says what is wrong; never others."""

import asyncio
import errno
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.flow.sorter.sorter_changes import Change, batch, change, full_batch, in_order, rows
from tidemill.certificates import SelfSigned, self_signed
from tidemill.errors import EngineError, SegmentCorruptError
from tidemill.flow.sorter import (
    KeyRange,
    LargeTransaction,
    Sorter,
    SpanSlices,
    fetching,
    read_portions,
    read_slices,
    serving,
)
from tidemill.flow.sorter.fetching import SegmentSupply
from tidemill.flow.sorter.segment import Segment, write_segment
from tidemill.flow.sorter.serving import SegmentServer
from tidemill.flow.sorter.shelf import Shelf
from tidemill.flow.sorter.wire import Ticket, checksum
from tidemill.model.progress import Checkpoints, Extent
from tidemill.model.ts import Ts

MANY = [change(1 + ts // 3, b"%05d" % (ts * 7919 % 4000)) for ts in range(4000)]
KEYS = KeyRange(b"01000", b"02500")


@pytest.fixture(scope="module")
def certificate() -> SelfSigned:
    return self_signed("tidemill")


@pytest.fixture
def capture(tmp_path: Path, certificate: SelfSigned) -> Iterator["Capture"]:
    started = Capture(tmp_path / "segments", certificate)
    yield started
    started.server.stop()


class Capture:
    """Segments, a server of them, and an executor that does not see their files: they lie elsewhere by then."""

    def __init__(self, folder: Path, certificate: SelfSigned, kind: type[SegmentServer] = SegmentServer) -> None:
        folder.mkdir()
        self.folder = folder
        self.shelf = Shelf()
        self.server = kind("127.0.0.1", 0, certificate)
        self.token = self.server.admit(self.shelf)
        self.supply = SegmentSupply(f"127.0.0.1:{self.server.port}", self.token, certificate.certificate)
        self.segments: list[Segment] = []

    def write(self, *changes: list[Change]) -> Segment:
        segment = write_segment(
            self.folder / f"{len(self.segments)}.arrow", [(i, [batch(each)]) for i, each in enumerate(changes)]
        )
        self.segments.append(segment)
        self.shelf.put(segment)
        return segment

    def plan(self, low_ts: int, high_ts: int, keys: KeyRange | None = None, section: int = 0) -> SpanSlices:
        """As it comes to an executor that has no such folder."""
        parts = [part for each in self.segments if (part := each.cut(section, low_ts, high_ts)) is not None]
        away = tuple(replace(each, layout=replace(each.layout, path=f"/nowhere/{each.layout.name}")) for each in parts)
        slices = SpanSlices(1, sum(map(len, away)), 1 << 20, away, keys)
        return pickle.loads(pickle.dumps(slices))  # type: ignore[no-any-return]  # what it was

    def read(self, low_ts: int = 0, high_ts: int = 1 << 40, keys: KeyRange | None = None, **more: Any) -> list[Change]:
        return rows(read_slices(self.plan(low_ts, high_ts, keys), supply=self.supply, **more))


def within(changes: list[Change], low: int, high: int, keys: KeyRange | None) -> list[Change]:
    found = [each for each in changes if low < each[1] <= high]
    return [each for each in found if keys is None or (each[3] >= keys.low and (keys.high or b"\xff") > each[3])]


@pytest.mark.parametrize("keys", [None, KEYS, KeyRange(b"03000", None), KeyRange(b"x", None)], ids=repr)
@pytest.mark.parametrize(("low", "high"), [(0, 5000), (340, 342), (1, 1333), (1332, 1334)])
def test_rows_of_one_segment(capture: Capture, low: int, high: int, keys: KeyRange | None) -> None:
    capture.write(MANY)
    assert capture.read(low, high, keys) == in_order(within(MANY, low, high, keys))


@pytest.mark.parametrize("keys", [None, KEYS], ids=repr)
def test_expiry_and_source_travel_along(capture: Capture, keys: KeyRange | None) -> None:
    segment = write_segment(capture.folder / "full.arrow", [(0, [full_batch(MANY)])])
    capture.segments.append(segment)
    capture.shelf.put(segment)
    found = pa.Table.from_batches(read_slices(capture.plan(0, 5000, keys), supply=capture.supply))
    assert found.to_pylist() == full_batch(in_order(within(MANY, 0, 5000, keys))).to_pylist()


@pytest.mark.parametrize("keys", [None, KEYS], ids=repr)
def test_segments_that_overlap_are_merged_as_at_home(capture: Capture, keys: KeyRange | None) -> None:
    for part in range(5):
        capture.write(MANY[part::5], MANY[part::3])
    assert capture.read(10, 1200, keys, batch_rows=100) == in_order(within(MANY, 10, 1200, keys))
    capture.segments = capture.segments[:1]
    other = rows(read_slices(capture.plan(0, 5000, keys, section=1), supply=capture.supply))
    assert other == in_order(within(MANY[::3], 0, 5000, keys))


def test_only_rows_of_the_wanted_keys_travel(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[pa.RecordBatch] = []
    monkeypatch.setattr(serving, "checksum", lambda batch: sent.append(batch) or checksum(batch))
    capture.write(MANY)
    capture.read(0, 5000, KEYS)
    assert sorted(key.as_py() for each in sent for key in each["key"]) == sorted(
        c[3] for c in within(MANY, 0, 5000, KEYS)
    )


@pytest.mark.parametrize("keys", [None, KEYS], ids=repr)
def test_a_large_transaction_is_fetched_once_and_read_as_often_as_wanted(
    capture: Capture, monkeypatch: pytest.MonkeyPatch, keys: KeyRange | None
) -> None:
    giant = [change(50, b"%05d" % i, value=b"v" * 50) for i in range(4000)]
    small = [change(ts, b"k%d" % ts) for ts in (1, 49, 51, 90)]
    for part in range(2):
        capture.write(giant[part::2] + small)
    fetched = []
    fetch = SegmentSupply._fetch
    monkeypatch.setattr(SegmentSupply, "_fetch", lambda *words: fetched.append(1) or fetch(*words))
    portions = list(read_portions(capture.plan(0, 100, keys), 100, 10_000, supply=capture.supply))
    (transaction,) = [each for each in portions if isinstance(each, LargeTransaction) and each.commit_ts == 50]
    expected = within(giant, 0, 100, keys)
    assert transaction.kinds() == (False, True, False)
    for _ in range(2):
        pieces = list(transaction.read())
        assert rows(pieces) == expected
        assert len(pieces) > 5
    assert len(fetched) == 2
    assert capture.read(0, 100, keys, batch_rows=100, batch_bytes=10_000) == in_order(
        within(giant + small, 0, 100, keys)
    )


def test_rows_larger_than_a_message(capture: Capture) -> None:
    wide = [change(ts, b"%d" % ts, value=os.urandom(5 << 20)) for ts in range(1, 4)] + [change(9, b"", value=b"")]
    capture.write(wide)
    assert capture.read() == wide


def test_a_file_that_is_at_hand_is_mapped(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentSupply, "_fetch", None)
    segment = capture.write(MANY)
    part = segment.cut(0, 0, 5000)
    assert part is not None
    plan = SpanSlices(1, 4000, 1 << 20, (part,), KEYS)
    assert rows(read_slices(plan, supply=capture.supply)) == in_order(within(MANY, 0, 5000, KEYS))


def test_another_file_of_that_name_and_size_is_not_taken_for_the_segment(capture: Capture, tmp_path: Path) -> None:
    """As where a worker's host runs a capture of its own, with the same folder."""
    other = tmp_path / "other.arrow"
    write_segment(other, [(0, [batch([change(c[1], b"x" + c[3][1:], value=c[4]) for c in MANY])])])
    capture.write(MANY)
    plan = capture.plan(0, 5000)
    assert other.stat().st_size == plan.slices[0].layout.file_bytes
    here = replace(plan.slices[0], layout=replace(plan.slices[0].layout, path=str(other)))
    assert rows(read_slices(replace(plan, slices=(here,)), supply=capture.supply)) == in_order(MANY)


def test_what_a_sorter_holds_can_be_asked_for_until_it_is_released(capture: Capture, tmp_path: Path) -> None:
    async def run() -> None:
        sorter = Sorter(tmp_path / "sorter", shelf=capture.shelf)
        sorter.open_span(1, Ts(0))
        await sorter.add(1, batch(MANY))
        sorter.advance(1, Ts(1000))
        (plan,) = sorter.plan(Extent(Ts(0), Ts(1000)))
        away = tuple(replace(s, layout=replace(s.layout, path=f"/nowhere/{s.layout.name}")) for s in plan.slices)
        plan = replace(plan, slices=away)
        assert rows(read_slices(plan, supply=capture.supply)) == in_order(within(MANY, 0, 1000, None))
        sorter.advance(1, Ts(5000))
        sorter.release(Checkpoints(Ts(5000)))
        with pytest.raises(EngineError, match=r"segment segment-00000001\.arrow .* was released"):
            next(read_portions(plan, supply=capture.supply))
        await sorter.add(1, batch([change(5001, b"k")]))
        sorter.advance(1, Ts(6000))
        sorter.plan(Extent(Ts(5000), Ts(6000)))
        assert len(capture.shelf) == 1
        sorter.close()
        assert len(capture.shelf) == 0

    asyncio.run(run())


# What can go wrong. Each is an error; no rows come of it.


def refused(capture: Capture, match: str, kind: type[Exception] = EngineError, supply: Any = None, **more: Any) -> None:
    portions = read_portions(capture.plan(0, 5000), supply=supply or capture.supply, **more)
    with pytest.raises(kind, match=match):
        next(portions)


def test_a_segment_that_was_released_is_refused_by_name(capture: Capture) -> None:
    capture.shelf.take(capture.write(MANY))
    refused(capture, r"segment 0\.arrow .* was released")


def test_a_segment_that_is_released_while_it_is_opened(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = capture.write(MANY)
    opened = Segment.open

    def open_late(self: Segment) -> Any:
        Path(self.layout.path).unlink()
        capture.shelf.take(segment)
        return opened(self)

    plan = capture.plan(0, 5000)
    monkeypatch.setattr(Segment, "open", open_late)
    with pytest.raises(EngineError, match="was released"):
        next(read_portions(plan, supply=capture.supply))


def test_a_segment_that_is_damaged_on_the_captures_disk(capture: Capture) -> None:
    segment = capture.write(MANY)
    plan = capture.plan(0, 5000)
    path = Path(segment.layout.path)
    content = bytearray(path.read_bytes())
    content[segment.layout.data[1] + 5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(SegmentCorruptError, match=r"have the checksum.*start again"):
        next(read_portions(plan, supply=capture.supply))


def test_a_token_of_another_changefeed_opens_nothing_of_this_one(capture: Capture) -> None:
    capture.write(MANY)
    refused(capture, "does not accept the token", supply=replace(capture.supply, token="guessed"))
    other = capture.server.admit(Shelf())
    refused(capture, "was released", supply=replace(capture.supply, token=other))
    capture.server.revoke(capture.token)
    refused(capture, "does not accept the token")


def test_another_server_at_the_address_is_not_trusted(capture: Capture) -> None:
    capture.write(MANY)
    supply = replace(capture.supply, certificate=self_signed("tidemill").certificate)
    refused(capture, "another certificate", supply=supply)


def test_a_capture_that_is_gone(capture: Capture) -> None:
    capture.write(MANY)
    capture.server.stop()
    refused(capture, "cannot reach it.*batch is taken back")


def test_an_address_where_nobody_answers_in_time(capture: Capture) -> None:
    capture.write(MANY)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        supply = replace(capture.supply, address=f"127.0.0.1:{silent.getsockname()[1]}", patience_seconds=0.3)
        refused(capture, "in time|cannot reach it", supply=supply)


Answer = Callable[[Iterator[serving.Message]], Iterator[serving.Message]]


def cut_short(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    yield next(messages)
    yield next(messages)


def without_a_batch(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    *_, last = all_of_them = list(messages)
    yield all_of_them[0]
    yield last


def damaged(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    yield next(messages)
    rows, metadata = next(messages)
    changed = rows.to_pylist()
    changed[7]["value"] = b"another"
    yield pa.RecordBatch.from_pylist(changed, rows.schema), metadata
    yield from messages


def twice(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    yield next(messages)
    first = next(messages)
    yield from (first, first)
    yield from messages


def without_metadata(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    for each, _ in messages:
        yield each, b"?"


def late(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    yield next(messages)
    threading.Event().wait(1.5)
    yield from messages


def in_trouble(messages: Iterator[serving.Message]) -> Iterator[serving.Message]:
    yield next(messages)
    raise OSError(errno.EIO, "the disk is gone")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (cut_short, "ends too early"),
        (without_a_batch, "ends after 0 rows"),
        (damaged, "checksum"),
        (twice, "more rows than it tells"),
        (without_metadata, "cannot be used"),
        (late, "in time"),
        (in_trouble, "segment 0.arrow"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_an_answer_that_is_not_as_it_should_be(
    tmp_path: Path, certificate: SelfSigned, monkeypatch: pytest.MonkeyPatch, change: Answer, match: str
) -> None:
    answer = SegmentServer.answer
    monkeypatch.setattr(SegmentServer, "answer", lambda *words: change(answer(*words)))
    capture = Capture(tmp_path / "segments", certificate)
    try:
        capture.write(MANY)
        refused(capture, match, supply=replace(capture.supply, patience_seconds=0.1 if change is late else 60.0))
    finally:
        capture.server.stop()


def test_what_is_not_a_ticket_is_refused(capture: Capture) -> None:
    segment = capture.write(MANY)
    name = segment.layout.identity.decode()
    client = fetching._client(os.getpid(), capture.supply)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + capture.token.encode())], timeout=10)
    for text in (
        b"", b"{}", b"[1]", b"\xff", b'["%s", "x", -1, 5, null]' % name.encode(),
        b'["%s", "x", 0, 5, ["zz", null]]' % name.encode(), b'["%s", "x", 5, 5, null]' % name.encode(),
        b'["%s", 3, 0, 5, null]' % name.encode(), b'["%s", "x", true, 5, null]' % name.encode(),
    ):  # fmt: skip
        with pytest.raises(flight.FlightServerError, match="malformed"):
            client.do_get(flight.Ticket(text), options)
    with pytest.raises(flight.FlightServerError, match="there are 4000 rows"):
        client.do_get(flight.Ticket(Ticket(name.encode(), "x", 0, 4001).write()), options)
    with pytest.raises(NotImplementedError):  # Flight's own word for what a server does not offer
        list(client.list_flights(options=options))


def test_a_full_disk_of_the_worker_is_an_error(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    capture.write(MANY)
    monkeypatch.setattr(fetching.os, "pwrite", full)
    refused(capture, "No space left on device")


def test_nothing_is_left_in_the_scratch_folder(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nowhere,{scratch}")
    capture.write(MANY)
    reading = read_slices(capture.plan(0, 5000), 100, supply=capture.supply)
    next(reading)
    assert not list(scratch.iterdir())


def test_secrets_do_not_show(capture: Capture) -> None:
    assert capture.token not in repr(capture.supply)
    assert "PRIVATE" not in repr(self_signed("tidemill"))
