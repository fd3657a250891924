"""One port for HTTP/1.1 and gRPC: who is told apart how, who is cut off when, and what is refused."""

import asyncio
import contextlib
import http.client
import os
import socket
import stat
import struct
import threading

import grpc
import orjson
import pytest

from tests.authority import Authority
from tests.e2e.processes import wait_until
from tidebox.front import Front
from tidebox.http1 import MAX_BODY_BYTES, MAX_HEAD_BYTES, HttpResponse
from tidebox.rpc import Server
from tidebox.tls import server_context
from tidemill.errors import UsageError
from tidemill.upstream.tls import context_of

DEADLINE_SECONDS = 30
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def echo_http(request):
    if request.path == "/broken":
        raise ValueError("this path is broken")
    shown = {"method": request.method, "path": request.path, "query": request.query, "body": request.body.decode()}
    return HttpResponse(200, orjson.dumps(shown))


def echo_each(requests, context):
    yield from requests


class World:
    """A front, the gRPC server behind it (``/echo.Echo/One`` and ``/Each``) and what talks to them."""

    def __init__(self):
        self.server = Server("echo")
        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
            "Each": grpc.stream_stream_rpc_method_handler(echo_each),
        }
        self.server.add_handler(grpc.method_handlers_generic_handler("echo.Echo", handlers))
        self.front = Front(0)
        self.address = self.front.listen()
        self.front.serve(self.server.start(0), echo_http)
        self._channels = []

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    def channel(self):
        self._channels.append(grpc.insecure_channel(self.address, options=UNLIMITED))
        return self._channels[-1]

    def one(self, message, channel=None):
        return (channel or self.channel()).unary_unary("/echo.Echo/One")(message, timeout=DEADLINE_SECONDS)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS)

    def http(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)

    def get(self, path):
        connection = self.http()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def close(self):
        for channel in self._channels:
            channel.close()
        self.front.stop()
        self.server.stop()


@pytest.fixture
def world():
    made = World()
    yield made
    made.close()


def raw(world, data, *, half_close=True):
    """Everything the front answers to these bytes, until it hangs up."""
    with world.socket() as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def status(answer):
    return int(answer.split(b" ", 2)[1])


# Both protocols


def test_http_and_grpc_are_served_at_one_address(world):
    assert world.one(b"hello") == b"hello"
    assert world.get("/a%20b?x=1&y=")[0] == 200
    assert world.one(b"again") == b"again"


def test_the_preface_may_come_byte_by_byte(world):
    with world.socket() as connection:
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
            connection.sendall(bytes((byte,)))
        connection.sendall(struct.pack("!I", 0)[1:] + bytes((4, 0)) + struct.pack("!I", 0))  # empty SETTINGS
        answer = connection.recv(9)
        assert answer[3] == 4  # the server's SETTINGS


def test_a_client_that_says_nothing_is_left_in_peace(world):
    with world.socket() as silent:
        assert world.one(b"x") == b"x"
        silent.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert status(silent.recv(65536)) == 200


def test_messages_of_many_megabytes_pass_in_both_directions(world):
    message = bytes(range(256)) * (64 << 10)  # 16 MiB, far above every buffer on the way
    assert world.one(message) == message


def test_bytes_for_a_client_that_does_not_read_stay_with_the_server():
    """Neither direction of a connection ever holds more than its bound."""
    front = Front(0)
    address = front.listen()
    with socket.create_server(("127.0.0.1", 0)) as backend:
        front.serve(f"127.0.0.1:{backend.getsockname()[1]}", echo_http)
        with socket.create_connection(address.split(":"), timeout=DEADLINE_SECONDS) as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\n")
            server, _ = backend.accept()
            with server:
                sent = pour(server)
                assert sent < 64 << 20
                server.shutdown(socket.SHUT_WR)
                received = sum(len(data) for data in iter(lambda: client.recv(1 << 20), b""))
                assert received == sent
    front.stop()


def pour(connection):
    """Send until nobody takes it any more; return how much was taken."""
    connection.settimeout(1)
    sent = 0
    try:
        while sent < 1 << 30:
            sent += connection.send(bytes(1 << 20))
    except TimeoutError:
        connection.settimeout(DEADLINE_SECONDS)
    return sent


def test_small_messages_wait_for_nothing_on_the_way(world):
    """With Nagle's algorithm every timestamp would come some 40 ms late."""
    assert world.one(b"x") == b"x"
    behind = int(world.server.address.rsplit(":", 1)[1])
    with contextlib.ExitStack() as copies:
        ends = [
            end for end in map(copies.enter_context, sockets_of_this_process()) if ports_of(end) & {world.port, behind}
        ]
        assert len(ends) == 4  # client, front twice, server
        assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for end in ends)


def sockets_of_this_process():
    for name in os.listdir("/dev/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        if stat.S_ISSOCK(os.fstat(copy).st_mode):
            yield socket.socket(fileno=copy)
        else:
            os.close(copy)


def ports_of(connection):
    """Of both ends; none if it is not connected, or not TCP."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return set()
    with contextlib.suppress(OSError):
        return {connection.getsockname()[1], connection.getpeername()[1]}
    return set()


def test_hundreds_of_connections_and_streams_live_side_by_side(world):
    streams = [world.channel().stream_stream("/echo.Echo/Each") for _ in range(200)]
    gates = [threading.Event() for _ in streams]

    def requests(at):
        yield b"%d" % at
        gates[at].wait(DEADLINE_SECONDS)
        yield b"bye"

    calls = [open_stream(requests(at)) for at, open_stream in enumerate(streams)]
    assert [next(call) for call in calls] == [b"%d" % at for at in range(200)]
    assert world.front.connections == 200
    assert world.get("/still")[0] == 200
    for gate in gates:
        gate.set()
    assert all(list(call) == [b"bye"] for call in calls)


def test_a_half_close_passes_through_and_the_rest_still_arrives(world):
    with world.socket() as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + bytes((4, 0)) + bytes(4))
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer[3] == 4  # SETTINGS came back before the end


def test_without_a_server_behind_it_grpc_is_cut_and_http_goes_on():
    front = Front(0)
    address = front.listen()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        front.serve(f"127.0.0.1:{unused.getsockname()[1]}", echo_http)
        with grpc.insecure_channel(address, options=UNLIMITED) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/echo.Echo/One")(b"", timeout=DEADLINE_SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_SECONDS)
    connection.request("GET", "/")
    assert connection.getresponse().read()
    connection.close()
    front.stop()


# HTTP


def test_a_connection_is_kept_for_many_requests(world):
    connection = world.http()
    for body in ("", "one", "x" * 100_000):
        connection.request("PATCH", "/rules?a=%41", body=body)
        answer = orjson.loads(connection.getresponse().read())
        assert answer == {"method": "PATCH", "path": "/rules", "query": {"a": "A"}, "body": body}
        source = connection.sock.getsockname()
    connection.request("GET", "/last", headers={"Connection": "close"})
    assert connection.sock.getsockname() == source
    response = connection.getresponse()
    assert response.getheader("Connection") == "close"
    assert response.read()
    connection.close()


def test_requests_sent_ahead_are_answered_in_order(world):
    paths = [b"/%d" % at for at in range(20)]
    sent = b"".join(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in paths)
    answer = raw(world, sent)
    assert [answer.index(b'"path":"%b"' % path) for path in paths] == sorted(
        answer.index(b'"path":"%b"' % path) for path in paths
    )


def test_a_head_is_answered_without_a_body(world):
    connection = world.http()
    connection.request("HEAD", "/x")
    response = connection.getresponse()
    assert int(response.getheader("Content-Length")) > 0
    assert response.read() == b""
    connection.close()


def test_a_client_may_ask_whether_to_send_its_body(world):
    with world.socket() as connection:
        connection.sendall(
            b"PUT /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b'"body":"abc"' in answer


def test_a_handler_that_fails_is_a_500_and_the_connection_goes_on(world):
    connection = world.http()
    connection.request("GET", "/broken")
    response = connection.getresponse()
    assert (response.status, b"this path is broken" in response.read()) == (500, True)
    connection.request("GET", "/whole")
    assert connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(b"hello\r\n\r\n", 400, id="no request line"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, id="TLS is not spoken"),
        pytest.param(b"G ET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="four words"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no Host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, id="a header without colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n folded: x\r\n\r\n", 400, id="a folded header"),
        pytest.param(b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="no path"),
        pytest.param(b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="a path that is no text"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="bytes outside ASCII"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, id="a negative length"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0\r\n\r\n", 400, id="a length with a dash"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, id="two lengths"
        ),
        pytest.param(b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", 505, id="another version"),
        pytest.param(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411, id="no length given"),
        pytest.param(
            b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413, id="a huge body"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: %b" % (b"x" * MAX_HEAD_BYTES), 431, id="endless headers"),
        pytest.param(b"PRI * HTTP/1.1\r\nHost: x\r\n\r\n", 400, id="almost the preface"),
    ],
)
def test_what_is_no_request_is_refused_and_the_front_goes_on(world, sent, expected):
    answer = raw(world, sent, half_close=False)
    assert status(answer) == expected
    assert b"Connection: close" in answer
    assert "error" in orjson.loads(answer.partition(b"\r\n\r\n")[2])
    assert world.get("/")[0] == 200


def test_the_reason_reaches_a_client_that_is_still_sending(world):
    head = b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)
    assert status(raw(world, head + bytes(1 << 20), half_close=False)) == 413


# Away


def test_an_absent_pd_cuts_everybody_and_comes_back(world):
    channel = world.channel()
    stream = channel.stream_stream("/echo.Echo/Each")(iter(lambda: b"x", None), timeout=DEADLINE_SECONDS)
    next(stream)
    kept = world.http()
    kept.request("GET", "/before")
    kept.getresponse().read()
    world.front.set_away(True)
    with pytest.raises(grpc.RpcError) as cut:
        list(stream)
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ConnectionResetError):
        kept.sock.recv(1)
    kept.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        world.get("/pd/api/v1/version")
    with pytest.raises(grpc.RpcError):
        world.one(b"nobody there")
    world.front.set_away(False)
    assert world.get("/pd/api/v1/version")[0] == 200
    assert world.one(b"back") == b"back"


def test_the_way_to_wake_it_stays_open(world):
    connection = world.http()
    connection.request("GET", "/tidemill/v1/faults")
    connection.getresponse().read()
    world.front.set_away(True)
    connection.request("POST", "/tidemill/v1/faults/pd-back")  # on the connection that was there before
    assert connection.getresponse().status == 200
    connection.close()
    assert world.get("/tidemill/v1/faults")[0] == 200


def test_one_connection_has_no_second_life_for_other_paths(world):
    world.front.set_away(True)
    connection = world.http()
    connection.request("GET", "/tidemill/v1/faults")
    assert connection.getresponse().read()
    connection.request("GET", "/pd/api/v1/version")
    with pytest.raises((OSError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()


def test_a_request_may_send_pd_away_itself_and_still_get_its_answer():
    front = Front(0)
    address = front.listen()

    def handler(request):
        front.set_away(True)
        return HttpResponse(200, b"gone")

    front.serve("127.0.0.1:1", handler)
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_SECONDS)
    connection.request("POST", "/tidemill/v1/faults/pd-away")
    assert connection.getresponse().read() == b"gone"
    connection.close()
    front.stop()


# Start and stop


def test_a_taken_port_is_a_usage_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        front = Front(port)
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: the port is taken"):
            front.listen()
        front.stop()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist_is_a_usage_error(port):
    front = Front(port)
    with pytest.raises(UsageError, match="there is no port"):
        front.listen()
    front.stop()


@contextlib.contextmanager
def no_threads_left(*prefixes):
    others = threading.enumerate()  # of upstreams that other tests share
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith(prefixes) and t not in others] == []


def test_stopping_leaves_no_thread_no_connection_and_a_free_port():
    with no_threads_left("pd-front", "pd-http"):
        world = World()
        with world.socket() as idle:
            assert world.get("/")[0] == 200
            stream = world.channel().stream_stream("/echo.Echo/Each")(iter(lambda: b"x", None))
            next(stream)
            world.front.stop()
            with pytest.raises(grpc.RpcError):
                list(stream)
            assert world.front.connections == 0
            with pytest.raises(ConnectionResetError):
                idle.recv(1)
        again = Front(world.port)
        assert again.listen() == world.address
        again.stop()
        world.front.stop()
        world.close()


def test_a_tls_connection_that_is_lost_in_the_same_moment_does_not_keep_the_front_from_stopping(tmp_path):
    """asyncio takes the socket away from a TLS connection one turn before it says that it is lost."""
    security = Authority(tmp_path / "authority").security("both")
    front = Front(0, server_context(security))
    address = front.listen()
    front.serve("127.0.0.1:1", echo_http)
    context = context_of(security)

    def lose_and_stop():
        for client in list(front._shared.clients):
            tls = client.transport._ssl_protocol
            below = tls._transport
            tls.connection_lost(None)
            below.set_protocol(asyncio.Protocol())
            below.abort()
            assert client.transport.get_extra_info("socket") is None
        front._set_away(True)

    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(b"G")  # a beginning: the front waits for more
        wait_until(lambda: front.connections == 1, "the connection")
        front._in_loop(lose_and_stop)
        front.stop()
    assert front.connections == 0
