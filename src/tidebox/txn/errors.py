"""Why a transaction's command is refused on a key. Each is one variant of the protocol's ``KeyError``."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tidebox.mvcc import Lock
from tidemill.errors import UpstreamError


class ConflictReason(Enum):
    OPTIMISTIC = auto()
    PESSIMISTIC_RETRY = auto()
    SELF_ROLLED_BACK = auto()
    RC_CHECK_TS = auto()
    LAZY_UNIQUENESS_CHECK = auto()
    NOT_LOCKED_KEY_CONFLICT = auto()


class TransactionError(UpstreamError):
    """A command that the state of a key does not allow."""

    code = "transaction"


class KeyLockedError(TransactionError):
    """Another transaction is about to write here."""

    code = "key-locked"
    retryable = True

    def __init__(self, key: bytes, lock: Lock) -> None:
        self.key, self.lock = key, lock
        super().__init__(f"key {key.hex()} is locked by the transaction that started at {lock.start_ts}")


class WriteConflictError(TransactionError):
    """Another transaction has committed here since this one began."""

    code = "write-conflict"

    def __init__(
        self,
        key: bytes,
        start_ts: int,
        conflict_start_ts: int,
        conflict_commit_ts: int,
        reason: ConflictReason = ConflictReason.OPTIMISTIC,
        primary: bytes = b"",
    ) -> None:
        self.key, self.start_ts, self.primary = key, start_ts, primary
        self.conflict_start_ts, self.conflict_commit_ts = conflict_start_ts, conflict_commit_ts
        self.reason = reason
        if reason is ConflictReason.SELF_ROLLED_BACK:
            found = f"the transaction that began at {start_ts} was rolled back on key {key.hex()}"
        else:
            found = f"key {key.hex()} was written at {conflict_commit_ts}, after the transaction began at {start_ts}"
        super().__init__(f"{found}. Begin a new transaction.")


class LockNotFoundError(TransactionError):
    """The transaction holds no lock on the key: it was rolled back, or never prewritten."""

    code = "lock-not-found"

    def __init__(self, key: bytes, start_ts: int) -> None:
        self.key, self.start_ts = key, start_ts
        super().__init__(f"the transaction that started at {start_ts} holds no lock on key {key.hex()}")


class PessimisticLockNotFoundError(TransactionError):
    """A key counts as locked since before the prewrite, and is not."""

    code = "pessimistic-lock-not-found"

    def __init__(self, key: bytes, start_ts: int, why: str) -> None:
        self.key, self.start_ts = key, start_ts
        super().__init__(
            f"PessimisticLockNotFound: the transaction that started at {start_ts} lost its pessimistic lock on key "
            f"{key.hex()}: {why}. Begin a new transaction."
        )


class AlreadyExistsError(TransactionError):
    code = "already-exists"

    def __init__(self, key: bytes) -> None:
        self.key = key
        super().__init__(f"key {key.hex()} exists already")


class AssertionFailedError(TransactionError):
    """The client was sure whether a key exists, and is wrong."""

    code = "assertion-failed"

    def __init__(
        self, key: bytes, start_ts: int, should_exist: bool, existing_start_ts: int, existing_commit_ts: int
    ) -> None:
        self.key, self.start_ts, self.should_exist = key, start_ts, should_exist
        self.existing_start_ts, self.existing_commit_ts = existing_start_ts, existing_commit_ts
        claim = "exists" if should_exist else "does not exist"
        super().__init__(
            f"the transaction that started at {start_ts} asserts that key {key.hex()} {claim}: it is wrong"
        )


class CommitTsExpiredError(TransactionError):
    """A reader has been promised that this transaction commits above its own ts."""

    code = "commit-ts-expired"

    def __init__(self, key: bytes, start_ts: int, commit_ts: int, min_commit_ts: int) -> None:
        self.key, self.start_ts, self.commit_ts, self.min_commit_ts = key, start_ts, commit_ts, min_commit_ts
        super().__init__(
            f"key {key.hex()} cannot be committed at {commit_ts}: readers were told not below {min_commit_ts}. "
            "Commit with a new ts."
        )


class TransactionNotFoundError(TransactionError):
    code = "transaction-not-found"

    def __init__(self, key: bytes, start_ts: int) -> None:
        self.key, self.start_ts = key, start_ts
        super().__init__(f"key {key.hex()} knows nothing of a transaction that started at {start_ts}")


class PrimaryMismatchError(TransactionError):
    """Who asks takes this key for a transaction's primary; its lock names another."""

    code = "primary-mismatch"

    def __init__(self, key: bytes, lock: Lock) -> None:
        self.key, self.lock = key, lock
        super().__init__(f"key {key.hex()} is not the primary of the transaction that started at {lock.start_ts}")


class CommittedError(TransactionError):
    """Too late to roll back."""

    code = "committed"

    def __init__(self, key: bytes, start_ts: int, commit_ts: int) -> None:
        self.key, self.start_ts, self.commit_ts = key, start_ts, commit_ts
        super().__init__(f"cannot roll back key {key.hex()}: it was committed at {commit_ts}")


@dataclass(frozen=True, slots=True)
class Wait:
    """One transaction waits for another to release a key."""

    start_ts: int
    holder_ts: int
    key: bytes


class DeadlockError(TransactionError):
    """To wait would be to wait for oneself. ``chain`` leads from the holder of the key back to the waiter."""

    code = "deadlock"

    def __init__(self, wait: Wait, chain: Sequence[Wait]) -> None:
        self.wait, self.chain = wait, tuple(chain)
        super().__init__(
            f"deadlock: the transaction that started at {wait.start_ts} wants key {wait.key.hex()}, whose holder "
            f"{wait.holder_ts} waits for it in turn. Roll one of them back."
        )


class AbortError(TransactionError):
    """For what the protocol has no variant of its own."""

    code = "abort"


class PrewriteRefusedError(TransactionError):
    """A prewrite that wrote nothing, and each reason."""

    code = "prewrite-refused"

    def __init__(self, reasons: Sequence[TransactionError]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(map(str, reasons)))
