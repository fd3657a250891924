"""The endpoint that Spark's source asks: open to one that knows the key, whoever else knocks."""

import asyncio
import errno
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from typing import Any

import pytest

from tidemill.errors import SinkError, SupersededError, TidemillError
from tidemill.flow.pipeline import Pipeline, Unit
from tidemill.model.ts import Ts
from tidemill.spark import endpoint as endpoint_module
from tidemill.spark.endpoint import Address, Endpoint, EndpointClient

PATIENCE_SECONDS = 60.0
PIPELINE = Pipeline("UTC")


class Served:
    """A processor that answers at once."""

    def __init__(self) -> None:
        self.error: TidemillError | None = None

    async def offer(self, generation: int, from_ts: Ts, wait_seconds: float) -> Ts:
        if self.error is not None:
            raise self.error
        return Ts(from_ts + 1)

    async def units(self, generation: int, from_ts: Ts, to_ts: Ts) -> list[Unit]:
        return []

    async def available_now(self) -> Ts:
        return Ts(9)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def endpoint(served: Served, loop: asyncio.AbstractEventLoop) -> Iterator[Endpoint]:
    endpoint = Endpoint(served, loop, PIPELINE, 2, authenticate_seconds=PATIENCE_SECONDS, most_strangers=4)
    yield endpoint
    endpoint.close()


def connect(endpoint: Endpoint) -> socket.socket:
    peer = socket.create_connection((endpoint.address.host, endpoint.address.port), PATIENCE_SECONDS)
    peer.settimeout(PATIENCE_SECONDS)
    return peer


def answers(endpoint: Endpoint) -> bool:
    client = EndpointClient(endpoint.address, 0)
    try:
        return client.offer(5, 0.0) == 6
    finally:
        client.close()


def reset(peer: socket.socket) -> None:
    """Hang up so that the other side's next step fails, rather than end."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_peers_that_connect_and_close_end_nothing(endpoint: Endpoint) -> None:
    for _ in range(10):
        connect(endpoint).close()
        reset(connect(endpoint))
        assert answers(endpoint)


@pytest.mark.parametrize("said", [b"", b"\0\0", struct.pack("!i", 1 << 30), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64])
def test_peers_that_say_nothing_or_nonsense_keep_nobody_waiting(endpoint: Endpoint, said: bytes) -> None:
    with ExitStack() as open_ones:
        for _ in range(3):
            open_ones.enter_context(connect(endpoint)).sendall(said)
            assert answers(endpoint)


def test_a_peer_without_the_key_is_refused_and_the_next_is_served(endpoint: Endpoint) -> None:
    stranger = EndpointClient(replace(endpoint.address, key="00" * 16), 0)
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        stranger.offer(5, 0.0)
    assert answers(endpoint)


def test_a_peer_that_does_not_prove_itself_is_hung_up_on(served: Served, loop: asyncio.AbstractEventLoop) -> None:
    endpoint = Endpoint(served, loop, PIPELINE, 2, authenticate_seconds=0.05)
    try:
        with connect(endpoint) as silent:
            assert read_all(silent)  # the challenge, and then the end
        assert answers(endpoint)
    finally:
        endpoint.close()


def test_strangers_are_bounded_and_the_oldest_goes_first(endpoint: Endpoint) -> None:
    with ExitStack() as open_ones:
        silent = [open_ones.enter_context(connect(endpoint)) for _ in range(5)]
        assert read_all(silent[0])
        assert answers(endpoint)


def test_a_system_without_threads_or_files_to_spare_ends_nothing(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(error: Exception) -> Callable[..., None]:
        def call(*_: object) -> None:
            raise error

        return call

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse(RuntimeError("can't start new thread")))
        for _ in range(10):
            with connect(endpoint) as unlucky:
                assert read_all(unlucky) == b""
    assert answers(endpoint)
    with monkeypatch.context() as patched:
        patched.setattr(endpoint_module.os, "dup", refuse(OSError(errno.EMFILE, "Too many open files")))
        for _ in range(10):
            with connect(endpoint) as unlucky:
                assert read_all(unlucky) == b""
    assert answers(endpoint)
    assert endpoint._strangers == {}
    assert "Exception in thread" not in capfd.readouterr().err


def read_all(peer: socket.socket) -> bytes:
    """Until the other side ends it."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := peer.recv(1 << 16):
            data += piece
    return data


def test_only_close_ends_it(endpoint: Endpoint) -> None:
    client = EndpointClient(endpoint.address, 0)
    assert client.offer(5, 0.0) == 6
    endpoint.close()
    with pytest.raises((EOFError, OSError)):
        client.offer(5, 0.0)
    with pytest.raises(OSError, match=r"refused|reset"):
        connect(endpoint)


def test_it_closes_without_a_word(
    served: Served, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        endpoint = Endpoint(served, loop, PIPELINE, 2)
        with connect(endpoint):  # somebody is just about to prove itself
            endpoint.close()
    assert caplog.messages == []


def test_a_failure_is_that_of_its_generation(endpoint: Endpoint, served: Served) -> None:
    def ask(generation: int) -> None:
        client = EndpointClient(endpoint.address, generation)
        with pytest.raises(TidemillError):
            client.offer(5, 0.0)
        client.close()

    served.error = SinkError("first")
    ask(1)
    assert endpoint.failure(1) is not None
    assert str(endpoint.failure(1)) == "first"
    assert endpoint.failure(2) is None  # it was started again since, and is well
    served.error = SinkError("second")
    ask(2)
    served.error = SinkError("of an old query")
    ask(1)
    assert str(endpoint.failure(2)) == "second"
    served.error = SupersededError("too late")
    ask(3)
    assert endpoint.failure(3) is None


def test_a_batch_without_units_comes_back_as_one_group_with_its_end(endpoint: Endpoint) -> None:
    client = EndpointClient(endpoint.address, 0)
    (group,) = client.units(5, 77)
    client.close()
    to_ts, work = pickle.loads(group)
    assert (to_ts, pickle.loads(work)) == (77, (PIPELINE, []))


def test_the_address_travels_in_options() -> None:
    address: Any = Address("127.0.0.1", 5, "ab")
    assert Address.of(address.options()) == address
