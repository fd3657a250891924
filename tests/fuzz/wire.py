"""What TiKV sends, damaged: change streams and answers to scans. Read as protobuf reads it, or refused by type."""

from contextlib import suppress
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from tests.fuzz.mutate import mutated, seeded
from tidemill._pb import cdcpb_pb2, errorpb_pb2, kvrpcpb_pb2
from tidemill.errors import ProtocolViolationError
from tidemill.model.ts import Ts
from tidemill.upstream.feed import wire
from tidemill.upstream.feed.matcher import Matcher
from tidemill.upstream.pairs import read_scan

Row = cdcpb_pb2.Event.Row


def _row(chance: Random) -> Any:
    some = chance.choice((b"", b"a", b"key", b"k" * 70, chance.randbytes(9)))
    return Row(
        type=chance.randrange(6),
        op_type=chance.randrange(3),
        start_ts=chance.randrange(1, 30),
        commit_ts=chance.choice((0, chance.randrange(5, 60), 1 << 62)),
        key=some,
        value=chance.choice((b"", b"v", b"v" * 300)),
        old_value=chance.choice((b"", b"o" * 20)),
        generation=chance.randrange(2),
        expire_ts_unix_secs=chance.choice((0, 0, 7, (1 << 64) - 1)),
        txn_source=chance.choice((0, 0, 0, 3)),
    )


def _message(chance: Random) -> bytes:
    events = []
    for _ in range(chance.randrange(4)):
        event = cdcpb_pb2.Event(region_id=chance.randrange(4), request_id=chance.randrange(3))
        kind = chance.randrange(6)
        if kind < 4:
            event.entries.CopyFrom(cdcpb_pb2.Event.Entries(entries=[_row(chance) for _ in range(chance.randrange(9))]))
        elif kind == 4:
            event.error.CopyFrom(cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=3)))
        else:
            event.resolved_ts = chance.randrange(40)
        events.append(event)
    message = cdcpb_pb2.ChangeDataEvent(events=events)
    if chance.random() < 0.5:
        regions = [chance.randrange(4) for _ in range(chance.randrange(5))]
        resolved = cdcpb_pb2.ResolvedTs(regions=regions, ts=chance.randrange(40), request_id=chance.randrange(3))
        message.resolved_ts.CopyFrom(resolved)
    data: bytes = message.SerializeToString()
    return data


def _matcher() -> Matcher:
    matcher = Matcher(batch_bytes=500)
    for request in range(3):
        for region in range(3):
            matcher.register(request, region, Ts(10), *((b"", None) if region else (b"b", b"l")))
    return matcher


def test_a_damaged_stream_is_read_or_refused() -> None:
    for chance in seeded(400):
        matcher = _matcher()
        for _ in range(6):
            messages = [_message(chance) for _ in range(chance.randrange(1, 4))]
            if chance.random() < 0.7:
                at = chance.randrange(len(messages))
                messages[at] = mutated(chance, messages[at], messages)
            try:
                parsed = wire.parse(messages)
                parsed.error_events()
            except ProtocolViolationError:
                continue  # the stream would end; the matcher has seen nothing of it
            with suppress(ProtocolViolationError):
                for _, batch in matcher.process(parsed).batches:
                    batch.validate(full=True)
                continue
            break


def test_what_is_parsed_of_a_damaged_message_is_what_protobuf_parses() -> None:
    for chance in seeded(1500):
        data = mutated(chance, _message(chance))
        try:
            parsed = wire.parse([data])
        except ProtocolViolationError:
            continue
        try:
            expected = cdcpb_pb2.ChangeDataEvent.FromString(data)
        except DecodeError:
            continue  # stricter in what we never look at
        rows = [row for event in expected.events for row in event.entries.entries]
        if any(event.ByteSize() and event.WhichOneof("event") != "entries" for event in expected.events):
            continue  # of a oneof that is there twice protobuf keeps the last
        found = [
            (int(r[wire.START_TS]), parsed.buffer[r[wire.KEY] : r[wire.KEY] + r[wire.KEY_LEN]].tobytes())
            for r in parsed.rows
        ]
        assert found == [(row.start_ts, row.key) for row in rows]


def test_a_damaged_answer_to_a_scan_is_read_as_protobuf_reads_it_or_refused() -> None:
    for chance in seeded(2500):
        pairs = [
            kvrpcpb_pb2.KvPair(key=chance.randbytes(chance.randrange(12)), value=b"v" * chance.choice((0, 3, 200)))
            for _ in range(chance.randrange(1, 12))
        ]
        if chance.random() < 0.1:
            pairs[-1].error.CopyFrom(kvrpcpb_pb2.KeyError(locked=kvrpcpb_pb2.LockInfo(key=b"k")))
        whole = kvrpcpb_pb2.ScanResponse(pairs=pairs).SerializeToString()
        data = mutated(chance, whole, [whole])
        try:
            answer = read_scan(data)
        except ProtocolViolationError:
            continue
        answer.pairs.validate(full=True)
        expected = kvrpcpb_pb2.ScanResponse.FromString(data)
        if answer.troubled is None:
            assert answer.pairs.to_pylist() == [{"key": p.key, "value": p.value} for p in expected.pairs]
        else:
            assert answer.troubled == expected
