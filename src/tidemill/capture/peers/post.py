"""The post of a capture: it takes letters to other captures, and brings theirs. gRPC, with or without TLS.

Letters of one capture to another arrive in order and are heard once, however often the connection breaks. A capture
that has begun anew has another id, and is another one. Letters to oneself take the same way but for the wire.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc

from tidemill._pb import clusterpb_pb2 as pb
from tidemill._pb import clusterpb_pb2_grpc as stubs
from tidemill.capture.peers.letters import Letter
from tidemill.capture.peers.stream import Inbox, Outbox, OverflowedError
from tidemill.capture.peers.values import pack, unpack
from tidemill.certificates import load_files, read_pem, stamps_of
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import PeerMessageError, UsageError
from tidemill.log import get_logger
from tidemill.model.address import read_address
from tidemill.model.schedule import CaptureId
from tidemill.model.security import PLAIN, Security
from tidemill.retry import Policy
from tidemill.upstream.channel import open_channel

log = get_logger("post")

VERSION = 1
_MOST_LETTER_BYTES = 64 << 20
_MOST_PEERS = 1024
_BATCH_BYTES = 4 << 20
_RETRY: Final = Policy(0.1, 1.0)
_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_LETTER_BYTES + (1 << 20)),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),  # captures ping each other as they like
)
_KIND = "letter"

Hear = Callable[[Letter], None]


class Post:
    """Runs on the capture's loop. ``close`` it in any case."""

    def __init__(
        self,
        capture: CaptureId,
        cluster: str,
        hear: Hear,
        *,
        on_overflow: Callable[[CaptureId], None],
        security: Security = PLAIN,
        allowed_cn: Collection[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``on_overflow``: a letter could not be taken to this capture, and the one who wrote it has to begin anew.
        ``allowed_cn``: whose certificates are good; empty: any of our authority."""
        self._allowed_cn = frozenset(allowed_cn)
        self.capture, self.cluster = capture, cluster
        self._hear, self._on_overflow, self._security, self._clock = hear, on_overflow, security, clock
        self._session = int(clock.now() * 1e9)  # ascends, also where a capture keeps its id
        self._server: grpc.aio.Server | None = None
        self._peers: dict[CaptureId, _Sender] = {}
        self._inboxes: dict[str, tuple[int, Inbox]] = {}
        self._is_closed = False

    async def start(self, address: str) -> str:
        """Listen at ``host:port``, where 0 is any port; returns the address at which it does."""
        host, _, port = address.rpartition(":")
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        add: Any = stubs.add_CapturesServicer_to_server  # generated, without types
        add(self, server)
        try:
            credentials = _credentials(self._security)
            bound = (
                server.add_secure_port(f"{host}:{port}", credentials)
                if credentials is not None
                else server.add_insecure_port(f"{host}:{port}")
            )
        except RuntimeError as error:
            raise UsageError(f"cannot listen for other captures at {address}. Choose a free address.") from error
        await server.start()
        self._server = server
        return f"{host}:{bound}"

    @property
    def known(self) -> set[CaptureId]:
        """Those that were met."""
        return set(self._peers)

    def meet(self, capture: CaptureId, address: str) -> None:
        """Another capture can be reached there."""
        read_address(address)
        known = self._peers.get(capture)
        if capture == self.capture or (known is not None and known.address == address):
            return
        if known is not None:
            known.stop()
        hello = pb.Hello(
            cluster=self.cluster, sender=self.capture, receiver=capture, session=self._session, version=VERSION
        )
        self._peers[capture] = _Sender(address, hello, self._security, self._clock, known.outbox if known else None)

    def part(self, capture: CaptureId) -> None:
        """It is gone."""
        sender = self._peers.pop(capture, None)
        if sender is not None:
            sender.stop()
        self._inboxes.pop(capture, None)

    def send(self, letter: Letter) -> None:
        """Returns at once. To a capture that was not met, nothing is sent."""
        content = pack(Letter, letter)
        if letter.receiver == self.capture:
            asyncio.get_running_loop().call_soon(self._bring, content)
            return
        sender = self._peers.get(letter.receiver)
        if sender is None:
            return
        try:
            sender.send(content, may_skip=letter.is_said_again)
        except OverflowedError:
            log.error("a capture does not take its letters", peer=letter.receiver, address=sender.address)
            self._on_overflow(letter.receiver)

    def _bring(self, content: bytes) -> None:
        if not self._is_closed:
            self._hear(unpack(Letter, content))

    async def close(self) -> None:
        self._is_closed = True
        for sender in self._peers.values():
            sender.stop()
        await asyncio.gather(*(sender.closed() for sender in self._peers.values()))
        if self._server is not None:
            await self._server.stop(None)

    # What other captures call.

    async def Exchange(self, packets: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        inbox: Inbox | None = None
        stranger = _stranger(context.auth_context(), self._allowed_cn)
        if stranger is not None:
            log.error("a capture is not let in", sender=context.peer(), reason=stranger)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, stranger)
            return
        async for packet in packets:
            if packet.HasField("hello"):
                inbox = self._greet(packet.hello)
            if inbox is None or isinstance(inbox, str):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, inbox or "say hello first")
                return
            try:
                for envelope in packet.envelopes:
                    self._receive(inbox, envelope)
            except PeerMessageError as error:
                log.error("a letter cannot be read", sender=context.peer(), reason=str(error))
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            yield pb.Receipt(received=inbox.received)

    def _greet(self, hello: Any) -> Any:
        """The inbox of a sender, or why there is none."""
        if hello.cluster != self.cluster:
            return f"this capture belongs to cluster {self.cluster!r}, not {hello.cluster!r}"
        if hello.receiver != self.capture:
            return f"this is capture {self.capture}, not {hello.receiver}"
        if hello.version != VERSION:
            return f"this capture speaks version {VERSION} of the protocol, not {hello.version}"
        session, inbox = self._inboxes.get(hello.sender, (0, Inbox()))
        if hello.session < session:
            return f"capture {hello.sender} has begun anew since"
        if hello.session > session:
            if session == 0 and len(self._inboxes) >= _MOST_PEERS:
                return f"there are {_MOST_PEERS} captures already"
            inbox = Inbox()
            self._inboxes[hello.sender] = (hello.session, inbox)
        return inbox

    def _receive(self, inbox: Inbox, envelope: Any) -> None:
        if envelope.kind != _KIND:
            raise PeerMessageError(f"another capture has sent a {envelope.kind[:40]!r}, which is unknown here.")
        if envelope.number <= inbox.received:
            return
        letter = unpack(Letter, envelope.content)
        if inbox.take(envelope.number) and not self._is_closed:
            self._hear(letter)


class _Sender:
    """To one other capture."""

    def __init__(self, address: str, hello: Any, security: Security, clock: Clock, outbox: Outbox | None) -> None:
        self.address = address
        self.outbox = outbox or Outbox()
        self._hello, self._security, self._clock = hello, security, clock
        self._wakes = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    def send(self, content: bytes, *, may_skip: bool) -> None:
        if self.outbox.put(_KIND, content, may_skip=may_skip):
            self._wakes.set()

    def stop(self) -> None:
        self._running.cancel()

    async def closed(self) -> None:
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        failures, said = 0, ""
        while True:
            channel = open_channel(self.address, self._security)
            try:
                async for receipt in stubs.CapturesStub(channel).Exchange(self._packets()):  # type: ignore[no-untyped-call]
                    self.outbox.received(receipt.received)
                    failures, said = 0, ""
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else "no answer in time"
                if reason != said:
                    log.warning(
                        "cannot reach a capture", peer=self._hello.receiver, address=self.address, reason=reason
                    )
                said = reason
            finally:
                with suppress(Exception):
                    await channel.close()
            failures += 1
            await self._clock.sleep(_RETRY.pause_seconds(failures))

    async def _packets(self) -> AsyncIterator[Any]:
        """Everything that has not arrived, then whatever comes."""
        sent = 0
        yield pb.Packet(hello=self._hello)
        while True:
            self._wakes.clear()
            packet, size = pb.Packet(), 0
            for number, kind, content in self.outbox.after(sent):
                if size and size + len(content) > _BATCH_BYTES:
                    self._wakes.set()
                    break
                packet.envelopes.add(number=number, kind=kind, content=content)
                sent, size = number, size + len(content)
            if size:
                yield packet
            await self._wakes.wait()


def _stranger(shown: Mapping[str, Sequence[bytes]], allowed: Collection[str]) -> str | None:
    """Why whoever has shown this certificate, as gRPC describes it, is not let in. None: it is."""
    names = {name.decode(errors="replace") for name in shown.get("x509_common_name", ())}
    if not allowed or names & set(allowed):
        return None
    return f"the name in its certificate, {', '.join(sorted(names)) or 'none'}, is not among --cert-allowed-cn"


def _credentials(security: Security) -> Any:
    """Of the server; None: plain text. Where there are certificates, a client has to show one of the same authority.
    They are read again when their files have changed."""
    if not security.is_tls:
        return None
    if not security.cert_path:
        raise UsageError("captures prove to each other who they are: give --cert and --key beside --ca.")
    newest = _Certificates(security)
    return grpc.dynamic_ssl_server_credentials(newest.read(), newest.renewed, require_client_authentication=True)


class _Certificates:
    """For gRPC, which asks at each handshake, in threads of its own."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._seen = stamps_of(security)

    def read(self) -> Any:
        security = self._security
        load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), security)  # says which file cannot be used
        pair = (read_pem(security.key_path), read_pem(security.cert_path))
        return grpc.ssl_server_certificate_configuration([pair], read_pem(security.ca_path))

    def renewed(self) -> Any:
        """None: the former ones hold."""
        stamps = stamps_of(self._security)
        if stamps == self._seen:
            return None
        self._seen = stamps
        try:
            return self.read()
        except UsageError as error:
            log.error("certificates cannot be used; the former ones hold", reason=str(error))
            return None
