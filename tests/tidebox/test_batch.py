"""Many commands on one stream: what each is answered, and who waits for whom."""

import queue

import grpc
import pytest

from tests.tidebox.stub import DEADLINE_SECONDS, client_of, put
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import kvrpcpb_pb2, tikvpb_pb2, tikvpb_pb2_grpc

Request = tikvpb_pb2.BatchCommandsRequest.Request


class Stream:
    """BatchCommands of store 1; ``answers`` grows by id."""

    def __init__(self, upstream, client):
        self.client = client
        self._out: queue.SimpleQueue = queue.SimpleQueue()
        stub = tikvpb_pb2_grpc.TikvStub(client.channel(upstream.store_addresses[0]))
        self.call = stub.BatchCommands(iter(self._out.get, None), timeout=DEADLINE_SECONDS)
        self.answers: dict[int, tikvpb_pb2.BatchCommandsResponse.Response] = {}
        self.order: list[int] = []
        self._next_id = 1

    def ask(self, **commands):
        """One batch; return the ids of its commands in order."""
        requests = [Request(**{name: request}) for name, request in commands.items()]
        ids = list(range(self._next_id, self._next_id + len(requests)))
        self._next_id += len(requests)
        self._out.put(tikvpb_pb2.BatchCommandsRequest(requests=requests, request_ids=ids))
        return ids

    def send(self, batch):
        self._out.put(batch)

    def answer(self, command_id):
        """Wait for it."""
        while command_id not in self.answers:
            self._read(next(self.call))
        return self.answers[command_id]

    def half_close(self):
        self._out.put(None)

    def rest(self):
        for message in self.call:
            self._read(message)

    def _read(self, message):
        assert len(message.responses) == len(message.request_ids)
        for command_id, response in zip(message.request_ids, message.responses, strict=True):
            assert command_id not in self.answers
            self.answers[command_id] = response
            self.order.append(command_id)


@pytest.fixture
def stream(upstream, client):
    opened = Stream(upstream, client)
    yield opened
    opened.call.cancel()
    opened.half_close()


def context(client, **other):
    return client.context(client.region(), **other)


def get(client, key, ts):
    return kvrpcpb_pb2.GetRequest(context=context(client), key=key, version=ts)


def lock(client, key, ts, wait_ms):
    return kvrpcpb_pb2.PessimisticLockRequest(
        context=context(client),
        mutations=[kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.PessimisticLock, key=key)],
        primary_lock=key,
        start_version=ts,
        for_update_ts=ts,
        lock_ttl=60_000,
        wait_timeout=wait_ms,
    )


def unlock(client, key, ts):
    return kvrpcpb_pb2.PessimisticRollbackRequest(
        context=context(client), start_version=ts, for_update_ts=ts, keys=[key]
    )


def test_every_kind_of_command_is_answered_in_its_own_kind(upstream, client, stream):
    upstream.commit([put(b"a", b"1")])
    ts = upstream.tso()
    scan = kvrpcpb_pb2.ScanRequest(context=context(client), limit=10, version=ts)
    raw = kvrpcpb_pb2.RawGetRequest(context=context(client), key=b"r")
    empty = tikvpb_pb2.BatchCommandsEmptyRequest(test_id=77)
    ids = stream.ask(Get=get(client, b"a", ts), Scan=scan, RawGet=raw, Empty=empty)
    answers = [stream.answer(command_id) for command_id in ids]
    assert [answer.WhichOneof("cmd") for answer in answers] == ["Get", "Scan", "RawGet", "Empty"]
    assert answers[0].Get.value == b"1"
    assert [(pair.key, pair.value) for pair in answers[1].Scan.pairs] == [(b"a", b"1")]
    assert answers[2].RawGet.not_found
    assert answers[3].Empty.test_id == 77


def test_a_transaction_goes_through_one_stream(upstream, client, stream):
    start = upstream.tso()
    mutation = kvrpcpb_pb2.Mutation(op=kvrpcpb_pb2.Put, key=b"k", value=b"v")
    prewrite = kvrpcpb_pb2.PrewriteRequest(
        context=context(client), mutations=[mutation], primary_lock=b"k", start_version=start, lock_ttl=3000
    )
    [prewritten] = stream.ask(Prewrite=prewrite)
    assert stream.answer(prewritten) == tikvpb_pb2.BatchCommandsResponse.Response(
        Prewrite=kvrpcpb_pb2.PrewriteResponse()
    )
    commit = upstream.tso()
    request = kvrpcpb_pb2.CommitRequest(
        context=context(client), start_version=start, commit_version=commit, keys=[b"k"]
    )
    [committed] = stream.ask(Commit=request)
    assert not stream.answer(committed).Commit.HasField("error")
    [read] = stream.ask(Get=get(client, b"k", upstream.tso()))
    assert stream.answer(read).Get.value == b"v"


def test_a_lock_that_waits_holds_up_nobody_behind_it(upstream, client, stream):
    first, second = upstream.tso(), upstream.tso()
    [held] = stream.ask(PessimisticLock=lock(client, b"k", first, wait_ms=0))
    assert not stream.answer(held).PessimisticLock.errors
    [waiting, quick] = stream.ask(
        PessimisticLock=lock(client, b"k", second, wait_ms=20_000), Get=get(client, b"other", upstream.tso())
    )
    assert stream.answer(quick).Get.not_found
    [later] = stream.ask(Get=get(client, b"other", upstream.tso()))
    assert stream.answer(later).Get.not_found
    assert waiting not in stream.answers
    [released] = stream.ask(PessimisticRollback=unlock(client, b"k", first))
    assert not stream.answer(released).PessimisticRollback.errors
    assert not stream.answer(waiting).PessimisticLock.errors
    assert stream.order.index(waiting) > stream.order.index(later)


def test_slow_writes_hold_up_no_reads(upstream, client, stream):
    start = upstream.tso()
    upstream.prewrite([put(b"k")], start)
    upstream.delay_apply(60)
    commit = upstream.tso()
    request = kvrpcpb_pb2.CommitRequest(
        context=context(client), start_version=start, commit_version=commit, keys=[b"k"]
    )
    [slow, quick] = stream.ask(Commit=request, Get=get(client, b"other", upstream.tso()))
    assert stream.answer(quick).Get.not_found
    assert slow not in stream.answers
    upstream.delay_apply(0)
    assert not stream.answer(slow).Commit.HasField("error")


def test_what_is_left_is_answered_after_the_client_asks_no_more(upstream, client, stream):
    first, second = upstream.tso(), upstream.tso()
    [held] = stream.ask(PessimisticLock=lock(client, b"k", first, wait_ms=0))
    stream.answer(held)
    [waiting] = stream.ask(PessimisticLock=lock(client, b"k", second, wait_ms=20_000))
    stream.half_close()
    rollback = unlock(client, b"k", first)
    client.kv[1].KVPessimisticRollback(rollback)
    stream.rest()
    assert not stream.answers[waiting].PessimisticLock.errors


def test_a_region_error_is_told_to_its_command_alone(upstream, client, stream):
    stale = context(client)
    stale.region_epoch.version += 5
    lost = kvrpcpb_pb2.GetRequest(context=stale, key=b"a", version=upstream.tso())
    batch = tikvpb_pb2.BatchCommandsRequest(
        requests=[Request(Get=lost), Request(Get=get(client, b"a", upstream.tso()))], request_ids=[8, 9]
    )
    stream.send(batch)
    assert stream.answer(8).Get.region_error.HasField("epoch_not_match")
    assert stream.answer(9).Get.not_found


def test_a_command_that_would_break_its_call_breaks_no_other(upstream, client, stream):
    stranger = kvrpcpb_pb2.GetRequest(context=context(client, cluster_id=5), key=b"a", version=upstream.tso())
    with pytest.raises(grpc.RpcError):
        client.kv[1].KvGet(stranger)
    [refused] = stream.ask(Get=stranger)
    assert "mismatch cluster id" in stream.answer(refused).Get.region_error.message
    [served] = stream.ask(Get=get(client, b"a", upstream.tso()))
    assert stream.answer(served).Get.not_found


def test_a_command_newer_than_our_protocol_is_refused_under_its_number(upstream, client, stream):
    unknown = Request.FromString(bytes((37 << 3 & 0x7F | 2 | 0x80, 37 >> 4, 0)))  # Flush, empty
    assert unknown.WhichOneof("cmd") is None
    stream.send(tikvpb_pb2.BatchCommandsRequest(requests=[unknown], request_ids=[1]))
    answer = stream.answer(1)
    assert answer.WhichOneof("cmd") is None
    assert b"command 37 is not served here" in answer.SerializeToString()


def test_commands_without_ids_end_the_stream(stream):
    stream.send(tikvpb_pb2.BatchCommandsRequest(requests=[Request()], request_ids=[]))
    with pytest.raises(grpc.RpcError) as refused:
        next(stream.call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_stream_ends_with_its_store():
    with EmbeddedUpstream.start(stores=1) as upstream, client_of(upstream) as client:
        stream = Stream(upstream, client)
        first, second = upstream.tso(), upstream.tso()
        [held] = stream.ask(PessimisticLock=lock(client, b"k", first, wait_ms=0))
        stream.answer(held)
        stream.ask(PessimisticLock=lock(client, b"k", second, wait_ms=500))
        upstream.kill_store(1)
        with pytest.raises(grpc.RpcError):
            stream.rest()
        stream.half_close()
