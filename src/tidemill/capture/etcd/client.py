"""etcd, as far as we need it. Any thread may call; calls block, each with a deadline.

A call that finds nobody is made again at the next address until its deadline. So one whose answer was lost is made
twice: all that is written here may be, and a transaction's callers look at what is there when it does not succeed.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc

from tidemill._pb import etcdserverpb_pb2 as pb
from tidemill._pb import etcdserverpb_pb2_grpc as stubs
from tidemill.certificates import read_pem, stamps_of
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.errors import MetadataError, MetadataUnavailableError, SessionLostError, UsageError
from tidemill.log import get_logger
from tidemill.model.address import read_address
from tidemill.model.security import PLAIN, Security
from tidemill.retry import Policy

log = get_logger("etcd")

_ATTEMPT_SECONDS = 3.0
_DEADLINE_SECONDS = 15.0
_RETRY: Final = Policy(0.05, 1.0)
_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # despite its name: one attempt to connect may take so long
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EtcdUser:
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """``lease`` 0: none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """``is_prefix``: all keys that begin so."""

    key: str
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class IsAt:
    """The key was changed last at this revision; 0: there is none."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Exists:
    key: str


Condition = IsAt | Exists
Change = Put | Delete


class _EndedError(Exception):
    """There is no answer, and gRPC does not call it an error."""


def read_endpoints(text: str, security: Security = PLAIN) -> tuple[str, ...]:
    """``host:port`` of each of a comma list; one may begin with http:// or https://, which has to go with
    ``security``."""
    given = [each.strip() for each in text.split(",") if each.strip()]
    if not given:
        raise UsageError("no etcd address given; etcd listens on port 2379 by default, for example 127.0.0.1:2379")
    for address in given:
        if address.startswith("https://") != security.is_tls and "://" in address:
            raise UsageError(
                f"etcd address {address!r} and the certificates do not go together: https:// needs --ca, http:// none."
            )
        try:
            read_address(_bare(address))
        except ValueError as error:
            raise UsageError(f"etcd address {address!r} {error}, for example 127.0.0.1:2379") from None
    return tuple(map(_bare, given))


def _bare(address: str) -> str:
    return address.partition("://")[2] or address


class EtcdClient:
    def __init__(
        self,
        endpoints: str,
        *,
        security: Security = PLAIN,
        user: EtcdUser | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._given = read_endpoints(endpoints, security)
        self._security, self._user, self._clock = security, user, clock
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stamps = stamps_of(security)
        self._now_at = 0  # of the addresses, the one that answered last
        self._token: str | None = None
        self._is_closed = threading.Event()

    def close(self) -> None:
        """What is under way ends with an error."""
        self._is_closed.set()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()

    # Keys.

    def get(self, key: str) -> Entry | None:
        found = self._call(stubs.KVStub, "Range", pb.RangeRequest(key=key.encode())).kvs
        return _entry(found[0]) if found else None

    def prefix(self, prefix: str, *, first_created: bool = False) -> list[Entry]:
        """All whose keys begin so, ordered by key. ``first_created``: only the oldest of them."""
        start = prefix.encode()
        request = pb.RangeRequest(key=start, range_end=_after(start))
        if first_created:
            request.sort_target, request.sort_order = pb.RangeRequest.CREATE, pb.RangeRequest.ASCEND
            request.limit = 1
        return [_entry(each) for each in self._call(stubs.KVStub, "Range", request).kvs]

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        self._call(stubs.KVStub, "Put", pb.PutRequest(key=key.encode(), value=value, lease=lease))

    def delete(self, key: str, *, is_prefix: bool = False) -> None:
        self._call(stubs.KVStub, "DeleteRange", _delete(Delete(key, is_prefix)))

    def commit(
        self, conditions: Iterable[Condition], changes: Sequence[Change], deadline_seconds: float = _DEADLINE_SECONDS
    ) -> int | None:
        """All changes at once if all conditions hold: the revision of it. None: one of them did not, or does not any
        more since the same transaction was carried out before and its answer was lost."""
        request = pb.TxnRequest(
            compare=[_compare(each) for each in conditions], success=[_op(each) for each in changes]
        )
        answer = self._call(stubs.KVStub, "Txn", request, deadline_seconds)
        return int(answer.header.revision) if answer.succeeded else None

    # Leases.

    def grant(self, ttl_seconds: int) -> int:
        answer = self._call(stubs.LeaseStub, "LeaseGrant", pb.LeaseGrantRequest(TTL=ttl_seconds))
        return int(answer.ID)

    def revoke(self, lease: int, deadline_seconds: float = _DEADLINE_SECONDS) -> None:
        self._call(stubs.LeaseStub, "LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), deadline_seconds)

    def keep_alive(self, lease: int, deadline_seconds: float) -> int:
        """Seconds that it has from now on; 0: it has ended."""

        def ask(channel: grpc.Channel, **how: Any) -> int:
            stub: Any = stubs.LeaseStub  # generated, without types
            answers = stub(channel).LeaseKeepAlive(iter([pb.LeaseKeepAliveRequest(ID=lease)]), **how)
            for answer in answers:
                return int(answer.TTL)
            raise _EndedError("it ended the stream of keep-alives")

        return self._persist("LeaseKeepAlive", ask, deadline_seconds)

    def cluster_id(self) -> int:
        """etcd's own."""
        return int(self._call(stubs.ClusterStub, "MemberList", pb.MemberListRequest()).header.cluster_id)

    # Calls.

    def _call(self, stub: Any, method: str, request: Any, deadline_seconds: float = _DEADLINE_SECONDS) -> Any:
        def ask(channel: grpc.Channel, **how: Any) -> Any:
            return getattr(stub(channel), method)(request, **how)

        return self._persist(method, ask, deadline_seconds)

    def _persist(self, what: str, ask: Callable[..., T], deadline_seconds: float) -> T:
        began, tries = self._clock.monotonic(), 0
        while True:
            left = deadline_seconds - (self._clock.monotonic() - began)
            timeout = max(min(_ATTEMPT_SECONDS, left), 0.01)
            try:
                return ask(self._channel(), timeout=timeout, metadata=self._metadata(timeout))
            except _EndedError as error:
                failure: Exception = error
            except grpc.RpcError as error:
                if not self._is_worth_a_try(error):
                    raise _refused(what, error) from error
                failure = error
            self._renew_channel()
            tries += 1
            pause = _RETRY.pause_seconds(tries)
            is_late = self._clock.monotonic() - began + pause >= deadline_seconds
            if is_late or self._is_closed.wait(pause):
                raise self._unreachable(what, failure) from failure
            self._now_at += 1

    def _is_worth_a_try(self, error: Any) -> bool:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._token is not None:
            self._token = None  # it has expired, or etcd was started anew
            return True
        return error.code() in _AGAIN

    def _metadata(self, timeout: float) -> list[tuple[str, str]]:
        if self._user is None:
            return []
        if self._token is None:
            request = pb.AuthenticateRequest(name=self._user.name, password=self._user.password)
            stub: Any = stubs.AuthStub
            self._token = stub(self._channel()).Authenticate(request, timeout=timeout).token
        return [("token", self._token)]

    def _channel(self) -> grpc.Channel:
        address = self._given[self._now_at % len(self._given)]
        with self._lock:
            if self._is_closed.is_set():
                raise _EndedError("the client is closed")
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = _open(address, self._security)
            return channel

    def _renew_channel(self) -> None:
        """Where the certificates are others than it was opened with."""
        if self._security.is_tls and stamps_of(self._security) != self._stamps:
            with self._lock:
                self._channels.clear()  # not closed: another thread may be about to use them
                self._stamps = stamps_of(self._security)

    def _unreachable(self, what: str, error: Exception) -> MetadataUnavailableError:
        detail = error.details() if isinstance(error, grpc.RpcError) else str(error)
        return MetadataUnavailableError(
            f"cannot ask etcd to {what}: none of {', '.join(self._given)} answers (last: {detail or 'no answer'}). "
            "Check the address, that etcd is running, and its certificates."
        )


def _open(address: str, security: Security) -> grpc.Channel:
    if not security.is_tls:
        return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_pem(security.ca_path),
        private_key=read_pem(security.key_path) if security.key_path else None,
        certificate_chain=read_pem(security.cert_path) if security.cert_path else None,
    )
    return grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)


def _refused(what: str, error: Any) -> MetadataError:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return SessionLostError(f"etcd refuses {what}: {error.details()}. The session has ended.")
    remedy = {
        grpc.StatusCode.UNAUTHENTICATED: "Check the user and the password",
        grpc.StatusCode.PERMISSION_DENIED: "Allow the user to read and write below /tidb/cdc and /tidemill",
        grpc.StatusCode.INVALID_ARGUMENT: "Check the user and the password, and the size of what is written",
        grpc.StatusCode.RESOURCE_EXHAUSTED: "etcd is out of space: compact it, defragment it and clear its alarm",
    }.get(error.code(), "Check its log")
    return MetadataError(f"etcd refuses {what}: {error.details()} ({error.code().name}). {remedy}.")


def _entry(found: Any) -> Entry:
    return Entry(found.key.decode(), found.value, found.create_revision, found.mod_revision, found.lease)


def _after(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin so. Our keys end in no 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _delete(change: Delete) -> Any:
    key = change.key.encode()
    return pb.DeleteRangeRequest(key=key, range_end=_after(key) if change.is_prefix else b"")


def _op(change: Change) -> Any:
    match change:
        case Put(key, value, lease):
            return pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=value, lease=lease))
        case Delete():
            return pb.RequestOp(request_delete_range=_delete(change))


def _compare(condition: Condition) -> Any:
    match condition:
        case IsAt(key, mod_revision):
            return pb.Compare(
                key=key.encode(), target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=mod_revision
            )
        case Exists(key):
            return pb.Compare(key=key.encode(), target=pb.Compare.CREATE, result=pb.Compare.GREATER, create_revision=0)
