"""The post between captures: in order, nothing lost, nothing heard twice, whatever the connection does."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.authority import Authority
from tidemill._pb import clusterpb_pb2 as pb
from tidemill._pb import clusterpb_pb2_grpc as stubs
from tidemill.capture.peers.letters import (
    Admit,
    Admitted,
    AskSinkState,
    Failed,
    Letter,
    OrdersAre,
    Said,
    SinkStateIs,
    letter_of,
)
from tidemill.capture.peers.post import Post
from tidemill.capture.peers.stream import Inbox, Outbox, OverflowedError
from tidemill.capture.peers.values import pack, unpack
from tidemill.clock import SYSTEM_CLOCK
from tidemill.errors import PeerMessageError, UsageError
from tidemill.model.orders import EVERYTHING, Assignment, Committed, Handover, Orders, Report
from tidemill.model.progress import Checkpoints
from tidemill.model.schedule import (
    AddTable,
    CaptureId,
    ChangefeedKey,
    Dispatch,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    RemoveTable,
    TableId,
    TableState,
    TableStatus,
    Takeover,
)
from tidemill.model.security import PLAIN, Security
from tidemill.model.ts import Ts

PATIENCE_SECONDS = 30.0
HEADER = Header(3, 4, "e-3", 5)
KEY = ChangefeedKey("default", "cf")
ONE, OTHER = CaptureId("one"), CaptureId("other")
AT = Checkpoints(Ts(10), {7: Ts(9)})
BODIES = [
    Heartbeat((TableId(1),), True, 4),
    HeartbeatResponse((TableStatus(TableId(1), TableState.STOPPED, Ts(2), Ts(3), Ts(4), 1.5),), Liveness.STOPPING, 1),
    Dispatch((
        AddTable(TableId(1), False, Ts(2), handover=Handover(frozenset({1}), {1: Ts(2)}, None)),
        AddTable(TableId(0), False, Ts(2), takeover=Takeover("gone", EVERYTHING, AT, Ts(4))),
        RemoveTable(TableId(5)),
    )),
    DispatchResponse((TableStatus(TableId(1), TableState.REPLICATING),)),
    Admit(1, "c/0", Assignment(frozenset({1, 2})), AT, None),
    Admitted(1, Orders(Ts(1), None, Ts(3), True, False, {"c/0": 3})),
    AskSinkState(2),
    SinkStateIs(2, {"a": [1, {"b": None}]}),
    SinkStateIs(2, None),
    OrdersAre(Orders(Ts(1), Ts(2)), Ts(1)),
    Said(Report("c/0", 1, EVERYTHING, AT, frozenset({3}), Committed(2, {"x": 1}), {1: Ts(2)}, frozenset({1}), True)),
    Failed("sink", "it is full", True),
]  # fmt: skip


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def letter(body: Any, receiver: CaptureId = OTHER) -> Letter:
    return Letter(HEADER, KEY, ONE, receiver, body)


# Values.


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_what_arrives_is_what_was_said(body: Any) -> None:
    sent = letter(body)
    assert unpack(Letter, pack(Letter, sent)) == sent


def test_what_concerns_the_scheduler_is_a_message() -> None:
    for body in BODIES:
        sent = letter(body)
        assert sent.message is None or letter_of(sent.message) == sent
        assert (sent.message is not None) == sent.is_said_again == (body in BODIES[:4])


def test_fields_of_another_version_are_passed_over() -> None:
    content = pack(Heartbeat, Heartbeat((), False, 3)).replace(b"{", b'{"new":[1],', 1)
    assert unpack(Heartbeat, content) == Heartbeat((), False, 3)
    assert unpack(Heartbeat, b"{}") == Heartbeat()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_letter_are_refused(content: bytes) -> None:
    with pytest.raises(PeerMessageError, match="no Letter"):
        unpack(Letter, content)


@given(st.integers(0), st.binary(min_size=1, max_size=3), st.sampled_from(BODIES))
def test_a_letter_that_was_damaged_is_refused_or_another_letter(at: int, damage: bytes, body: Any) -> None:
    content = pack(Letter, letter(body))
    at %= len(content)
    with suppress(PeerMessageError):
        assert isinstance(unpack(Letter, content[:at] + damage + content[at + len(damage) :]), Letter)


# Streams.


def test_an_outbox_keeps_what_has_not_arrived_up_to_a_bound() -> None:
    outbox = Outbox(100)
    for _ in range(4):
        assert outbox.put("k", b"x" * 10, may_skip=True)
    assert outbox.put("k", b"x" * 40, may_skip=False)
    assert not outbox.put("k", b"x" * 10, may_skip=True)
    with pytest.raises(OverflowedError):
        outbox.put("k", b"x" * 30, may_skip=False)
    outbox.received(4)
    assert [number for number, _, _ in outbox.after(0)] == [5]
    assert outbox.put("k", b"x" * 30, may_skip=False)


def test_an_inbox_takes_each_once_and_in_order() -> None:
    inbox = Inbox()
    assert inbox.take(1)
    assert not inbox.take(1)
    with pytest.raises(PeerMessageError, match="3 has come, and 2 has not"):
        inbox.take(3)
    assert inbox.take(2)


# The post.


@asynccontextmanager
async def posts(
    hear: Callable[[Letter], None], security: Security = PLAIN, other: Security = PLAIN
) -> AsyncIterator[tuple[Post, Post, str]]:
    """The first one writes to the second, which listens there."""
    one = Post(ONE, "default", hear, on_overflow=lambda _: None, security=security)
    two = Post(OTHER, "default", hear, on_overflow=lambda _: None, security=other)
    address = await two.start("127.0.0.1:0")
    try:
        yield one, two, address
    finally:
        await one.close()
        await two.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await SYSTEM_CLOCK.sleep(0.01)


def numbers(heard: list[Letter]) -> list[int]:
    return [each.body.number for each in heard if isinstance(each.body, AskSinkState)]


class Wire:
    """Between two captures: it can be cut at any moment."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_down = False

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if not self.is_down:
                host, _, port = self._to.rpartition(":")
                there, back = await asyncio.open_connection(host, int(port))
                try:
                    await asyncio.wait(
                        [asyncio.create_task(self._copy(reader, back)), asyncio.create_task(self._copy(there, writer))],
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    back.close()
        finally:
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while content := await reader.read(500):  # so that a cut falls into the middle of something
                writer.write(content)
                await writer.drain()
        except ConnectionError:
            pass

    async def cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        self._server.close()
        await self.cut()


@on_a_loop
async def test_letters_arrive_in_order_and_once_over_a_wire_that_is_cut() -> None:
    heard: list[Letter] = []
    async with posts(heard.append) as (one, _, address):
        wire = Wire(address)
        one.meet(OTHER, await wire.start())
        for number in range(1, 2001):
            one.send(letter(AskSinkState(number)))
            if number % 200 == 0:
                await until(lambda: len(heard) > number - 200)  # noqa: B023
                await wire.cut()
        await until(lambda: len(heard) >= 2000)
        assert numbers(heard) == list(range(1, 2001))
        await wire.close()


@on_a_loop
async def test_letters_wait_for_a_capture_that_is_away() -> None:
    heard: list[Letter] = []
    async with posts(heard.append) as (one, _, address):
        wire = Wire(address)
        wire.is_down = True
        one.meet(OTHER, await wire.start())
        one.send(letter(AskSinkState(1)))
        await SYSTEM_CLOCK.sleep(0.3)
        assert heard == []
        wire.is_down = False
        await until(lambda: numbers(heard) == [1])
        await wire.close()


@on_a_loop
async def test_letters_to_oneself_take_the_same_way() -> None:
    heard: list[Letter] = []
    async with posts(heard.append) as (one, _, _):
        one.send(letter(AskSinkState(1), ONE))
        assert heard == []
        await until(lambda: heard == [letter(AskSinkState(1), ONE)])


@on_a_loop
async def test_a_capture_that_has_begun_anew_is_not_the_one_before() -> None:
    heard: list[Letter] = []
    async with posts(heard.append) as (one, _, address):
        third = CaptureId("third")
        one.meet(third, address)
        one.send(letter(AskSinkState(1), third))
        one.meet(OTHER, address)
        one.send(letter(AskSinkState(2)))
        await until(lambda: numbers(heard) == [2])


@on_a_loop
async def test_mtls_keeps_strangers_out(tmp_path: Path) -> None:
    authority, strange = Authority(tmp_path / "ca"), Authority(tmp_path / "strange")
    heard: list[Letter] = []
    ours = authority.security("one")
    async with posts(heard.append, ours, authority.security("other")) as (one, _, address):
        one.meet(OTHER, address)
        one.send(letter(AskSinkState(1)))
        await until(lambda: numbers(heard) == [1])
        for security in (
            PLAIN,
            Security(ours.ca_path),
            Security(ours.ca_path, *strange.issue("s")),
            strange.security(),
        ):
            stranger = Post(CaptureId("stranger"), "default", heard.append, on_overflow=print, security=security)
            stranger.meet(OTHER, address)
            stranger.send(letter(AskSinkState(9)))
            await SYSTEM_CLOCK.sleep(0.3)
            await stranger.close()
        assert numbers(heard) == [1]


@on_a_loop
async def test_a_capture_of_another_name_is_kept_out(tmp_path: Path) -> None:
    authority, heard = Authority(tmp_path / "ca"), list[Letter]()
    other = Post(
        OTHER, "default", heard.append, on_overflow=print, security=authority.security("capture"),
        allowed_cn=["capture", "another"],
    )  # fmt: skip
    address = await other.start("127.0.0.1:0")
    try:
        for number, name in enumerate(["stranger", "another"]):
            post = Post(ONE, "default", print, on_overflow=print, security=authority.security(name))
            post.meet(OTHER, address)
            post.send(letter(AskSinkState(number)))
            if name == "stranger":
                await SYSTEM_CLOCK.sleep(0.5)
            else:
                await until(lambda: numbers(heard) == [1])
            await post.close()
    finally:
        await other.close()
    assert numbers(heard) == [1]


@on_a_loop
async def test_certificates_of_captures_are_read_again(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    files = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]

    def install(authority: Authority) -> None:
        for path, source in zip(files, (authority.ca_path, *authority.issue("rolling")), strict=True):
            aside = path.with_suffix(".new")
            aside.write_bytes(Path(source).read_bytes())
            aside.replace(path)

    install(ours)
    heard: list[Letter] = []
    other = Post(OTHER, "default", heard.append, on_overflow=print, security=Security(*map(str, files)))
    address = await other.start("127.0.0.1:0")

    async def says(number: int, authority: Authority) -> None:
        post = Post(CaptureId(f"c{number}"), "default", print, on_overflow=print, security=authority.security())
        post.meet(OTHER, address)
        post.send(letter(AskSinkState(number)))
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await until(lambda: number in numbers(heard))
        await post.close()

    try:
        await says(1, ours)
        install(theirs)
        await says(2, ours)
        await says(3, theirs)
        files[1].write_text("no certificate")
        await says(4, theirs)
    finally:
        await other.close()
    assert numbers(heard) == [1, 3, 4]


@on_a_loop
async def test_a_server_over_tls_needs_a_certificate(tmp_path: Path) -> None:
    post = Post(ONE, "default", print, on_overflow=print, security=Security(Authority(tmp_path / "ca").ca_path))
    with pytest.raises(UsageError, match="give --cert and --key"):
        await post.start("127.0.0.1:0")


def hello(**other: Any) -> Any:
    return pb.Hello(**{"cluster": "default", "sender": "x", "receiver": OTHER, "session": 1, "version": 1, **other})


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (pb.Packet(), "say hello first"),
        (pb.Packet(hello=hello(cluster="c")), "belongs to cluster 'default', not 'c'"),
        (pb.Packet(hello=hello(receiver="nobody")), "this is capture other, not nobody"),
        (pb.Packet(hello=hello(version=9)), "speaks version 1"),
        (pb.Packet(hello=hello(), envelopes=[pb.Envelope(number=1, kind="k")]), "a 'k', which is unknown"),
        (pb.Packet(hello=hello(), envelopes=[pb.Envelope(number=1, kind="letter", content=b"{}")]), "no Letter"),
        (
            pb.Packet(
                hello=hello(),
                envelopes=[
                    pb.Envelope(number=2, kind="letter", content=pack(Letter, letter(AskSinkState(1)))),
                ],
            ),
            "2 has come, and 1 has not",
        ),
    ],
)
@on_a_loop
async def test_what_is_no_letter_is_refused(packet: Any, reason: str) -> None:
    heard: list[Letter] = []
    async with posts(heard.append) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        call = stubs.CapturesStub(channel).Exchange(iter([packet]))  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in call:
                pass
        assert reason in (refused.value.details() or "")
        assert heard == []
