"""Messages of the change stream, walked in bulk, against the protobuf library."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rounds import examples
from tidemill._pb import cdcpb_pb2, errorpb_pb2
from tidemill.errors import ProtocolViolationError
from tidemill.upstream.feed import wire

ids = st.integers(0, 2**64 - 1)
timestamps = st.integers(0, 2**63 - 1)

rows = st.builds(
    cdcpb_pb2.Event.Row,
    start_ts=timestamps,
    commit_ts=timestamps,
    type=st.integers(0, 5),
    op_type=st.integers(0, 2),
    key=st.binary(max_size=40),
    value=st.binary(max_size=300),
    old_value=st.binary(max_size=20),
    expire_ts_unix_secs=st.integers(0, 2**64 - 1),
    txn_source=st.integers(0, 5),
    generation=st.integers(0, 3),
)
errors = st.one_of(
    st.builds(lambda n: cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=n)), ids),
    st.builds(lambda n: cdcpb_pb2.Error(server_is_busy=errorpb_pb2.ServerIsBusy(reason="busy", backoff_ms=n)), ids),
    st.just(cdcpb_pb2.Error()),
)
events = st.one_of(
    st.builds(
        lambda region, request, entries: cdcpb_pb2.Event(
            region_id=region, request_id=request, entries=cdcpb_pb2.Event.Entries(entries=entries)
        ),
        ids,
        ids,
        st.lists(rows, max_size=5),
    ),
    st.builds(cdcpb_pb2.Event, region_id=ids, request_id=ids, error=errors),
    st.builds(cdcpb_pb2.Event, region_id=ids, request_id=ids, resolved_ts=timestamps),
    st.builds(cdcpb_pb2.Event, region_id=ids, index=ids, request_id=ids),
)
messages = st.one_of(
    st.builds(cdcpb_pb2.ChangeDataEvent, events=st.lists(events, max_size=4)),
    st.builds(
        lambda regions, ts, request: cdcpb_pb2.ChangeDataEvent(
            resolved_ts=cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request)
        ),
        st.lists(ids, max_size=6),
        timestamps,
        ids,
    ),
)


def unsigned(number):
    return int(number) & (2**64 - 1)


def seen_by_protobuf(batch):
    """Rows, resolved-ts and errors in the order in which they came."""
    found_rows, found_resolved, found_errors = [], [], []
    for message in batch:
        for event in message.events:
            who = (event.request_id, event.region_id)
            which = event.WhichOneof("event")
            if which == "entries":
                for r in event.entries.entries:
                    ts = (r.start_ts, r.commit_ts)
                    rare = (r.expire_ts_unix_secs, r.txn_source)
                    found_rows.append((who, r.type, r.op_type, *ts, r.key, r.value, r.old_value, r.generation, *rare))
            elif which == "resolved_ts":
                found_resolved.append((event.resolved_ts, event.request_id, [event.region_id], len(found_rows)))
            elif which == "error":
                found_errors.append((who, event.error))
        if message.HasField("resolved_ts"):
            r = message.resolved_ts
            found_resolved.append((r.ts, r.request_id, list(r.regions), len(found_rows)))
    return found_rows, found_resolved, found_errors


def seen_by_us(parsed):
    def text(at, length):
        return parsed.buffer[at : at + length].tobytes()

    found_rows = []
    rare = {row: (unsigned(expiry), unsigned(source)) for row, expiry, source in parsed.rare.tolist()}
    for number, r in enumerate(parsed.rows.tolist()):
        region, request = (unsigned(n) for n in parsed.events[r[wire.EVENT]])
        bodies = text(r[4], r[5]), text(r[6], r[7]), text(r[8], r[9])
        found_rows.append(((request, region), *r[:4], *bodies, r[wire.GENERATION], *rare.get(number, (0, 0))))
    found_resolved = []
    for ts, request, first, last, before in parsed.resolved.tolist():
        regions = [unsigned(n) for n in parsed.regions[first:last]]
        found_resolved.append((ts, unsigned(request), regions, before))
    found_errors = [((e.request_id, e.region_id), e.error) for e in parsed.error_events()]
    return found_rows, found_resolved, found_errors


@given(st.lists(messages, max_size=4))
def test_many_messages_walked_at_once_hold_what_protobuf_reads_from_each(batch):
    assert seen_by_us(wire.parse([m.SerializeToString() for m in batch] or [b""])) == seen_by_protobuf(batch)


def test_no_bytes_are_an_empty_message():
    parsed = wire.parse([b"", b""])
    assert len(parsed.rows) == len(parsed.events) == len(parsed.resolved) == len(parsed.errors) == 0


def test_fields_of_a_newer_protocol_are_passed_over():
    row = cdcpb_pb2.Event.Row(start_ts=5, key=b"k").SerializeToString()
    newer = (
        b"\xf8\x07\x2a" + b"\xf9\x07" + b"x" * 8 + b"\xfa\x07\x03abc" + b"\xfd\x07" + b"y" * 4
    )  # field 127, each wire type
    entries = b"\x0a" + bytes([len(row + newer)]) + row + newer
    event = b"\x1a" + bytes([len(entries)]) + entries + newer
    parsed = wire.parse([newer + b"\x0a" + bytes([len(event)]) + event])
    assert seen_by_us(parsed)[0] == [((0, 0), 0, 0, 5, 0, b"k", b"", b"", 0, 0, 0)]


def test_region_ids_that_are_not_packed_are_read_as_well():
    body = b"\x08\x07\x08\x09\x10\x64\x18\x03"  # regions 7 and 9, ts 100, request 3
    parsed = wire.parse([b"\x12" + bytes([len(body)]) + body])
    assert seen_by_us(parsed)[1] == [(100, 3, [7, 9], 0)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x0a", id="a field without its length"),
        pytest.param(b"\x0a\x05\x08\x01", id="a length beyond the end"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length below zero"),
        pytest.param(b"\x80" * 11, id="a number that does not end"),
        pytest.param(b"\x00\x01", id="field number zero"),
        pytest.param(b"\x0b\x0c", id="a group"),
        pytest.param(b"\x0f\x00", id="a wire type that does not exist"),
        pytest.param(b"\x12\x0c\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", id="a ts beyond all time"),
    ],
)
def test_bytes_that_are_no_message_are_refused(body):
    with pytest.raises(ProtocolViolationError, match="malformed or cut off at byte"):
        wire.parse([body])


def test_a_message_cut_short_does_not_borrow_bytes_from_the_next():
    whole = cdcpb_pb2.ChangeDataEvent(events=[cdcpb_pb2.Event(region_id=1, request_id=2)]).SerializeToString()
    with pytest.raises(ProtocolViolationError):
        wire.parse([whole[:-1], whole])


def test_an_error_event_that_protobuf_cannot_read_is_refused():
    event = b"\x2a\x02\x0a\x05"  # error { not_leader, cut off }
    with pytest.raises(ProtocolViolationError, match="error event of 2 bytes"):
        wire.parse([b"\x0a" + bytes([len(event)]) + event]).error_events()


@settings(max_examples=examples(300))
@given(messages, st.data())
def test_damaged_messages_are_read_or_refused_but_never_crash(message, data):
    body = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    try:
        parsed = wire.parse([bytes(body[:cut])])
        parsed.error_events()
    except ProtocolViolationError:
        return
    assert (parsed.rows[:, [wire.KEY, wire.VALUE, wire.OLD]] >= 0).all()
    for at, length in ((wire.KEY, wire.KEY_LEN), (wire.VALUE, wire.VALUE_LEN), (wire.OLD, wire.OLD_LEN)):
        assert (parsed.rows[:, at] + parsed.rows[:, length] <= cut).all()


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_random_bytes_never_crash(body):
    with contextlib.suppress(ProtocolViolationError):
        assert seen_by_us(wire.parse([body])) is not None
