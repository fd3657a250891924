"""Where a changefeed of a cluster is at home: its state is in etcd, on the condition that who saves it is the owner.

Saving is the commit point of every batch, as it is with a folder (``capture.metadata``). One transaction writes the
state and TiCDC's status of it, if the owner's key is what it was at the election, the changefeed has not been removed,
and nobody has saved since. A late owner meets SupersededError.

A state is some kilobytes for most changefeeds. etcd takes about a megabyte at once, so a larger one goes into parts
beforehand, and the transaction says which of them count.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import orjson

from tidemill.capture.etcd.client import Change, Condition, Delete, EtcdClient, Exists, IsAt, Put
from tidemill.capture.etcd.documents import status_document
from tidemill.capture.etcd.election import Claim
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.metadata import ChangefeedState, new_changefeed_id, read_state, state_document
from tidemill.errors import MetadataError, MetadataUnavailableError, SupersededError
from tidemill.log import get_logger
from tidemill.model.schedule import ChangefeedKey

log = get_logger("state")

_LARGEST_VALUE = 512 << 10
_PART = b"parts:"
_WHOLE = b"whole:"
_MOST_OPS = 100


class EtcdHome:
    """One owner's, of one changefeed. Calls block; ``save`` waits for an etcd that is away."""

    former_name = ""

    def __init__(
        self, client: EtcdClient, keys: Keys, changefeed: ChangefeedKey, claim: Claim | None, folder: Path
    ) -> None:
        """``claim``: the owner's; None: it only reads. ``folder``: for rows that are put aside."""
        self._client, self._keys, self._changefeed, self._claim = client, keys, changefeed, claim
        self.path = folder
        self.saved: ChangefeedState | None = None
        self._revision = 0  # of the key of the state, as it is known
        self._parts: list[str] = []  # keys of what it is made of
        self._number = 0
        self.is_over = False  # no save waits for etcd any more

    @property
    def undecodable(self) -> Path:
        return self.path / "undecodable"

    def changefeed_id(self) -> str:
        """Its random name in the world, the same one however often its start is tried."""
        key = self._keys.name(self._changefeed)
        name = new_changefeed_id().encode()
        self._client.commit([IsAt(key, 0)], [Put(key, name)])
        found = self._client.get(key)
        if found is None:
            raise MetadataError(f"etcd has not kept {key}. Check that nobody removes keys below {self._keys.ours}.")
        return found.value.decode()

    def load(self) -> ChangefeedState | None:
        found = self._client.get(self._keys.state(self._changefeed))
        if found is None:
            self._revision, self._parts, self.saved = 0, [], None
            return None
        try:
            content, parts = self._whole(found.value)
            state = read_state(content)
        except (ValueError, zlib.error) as error:
            raise MetadataError(
                f"cannot understand the state of changefeed {self._changefeed} in etcd, {found.key}: {error}. "
                "Restore it from a copy of etcd, or remove the changefeed and create it anew."
            ) from error
        self._revision, self._parts, self.saved = found.mod_revision, parts, state
        return state

    def save(self, state: ChangefeedState) -> None:
        if self._claim is None:
            raise SupersededError(f"changefeed {self._changefeed} is another capture's; this one only reads.")
        value, puts = self.packed(state)
        for put in puts:
            self._write_part(put)
        key, keys = self._keys.state(self._changefeed), [put.key for put in puts]
        status = Put(self._keys.status(self._changefeed), status_document(state, None))
        changes: list[Change] = [Put(key, value), status, *(Delete(each) for each in self._parts[:_MOST_OPS])]
        revision = self._commit(key, value, changes)
        self._revision, self._parts, self.saved = revision, keys, state

    def _commit(self, key: str, value: bytes, changes: list[Change]) -> int:
        assert self._claim is not None
        conditions: list[Condition] = [
            self._claim.condition,
            IsAt(key, self._revision),
            Exists(self._keys.info(self._changefeed)),
        ]
        while True:
            try:
                revision = self._client.commit(conditions, changes)
                if revision is not None:
                    return revision
                found = self._client.get(key)
                if found is not None and found.value == value and found.mod_revision > self._revision:
                    return found.mod_revision  # it was carried out, and the answer was lost
                raise self._superseded()
            except MetadataUnavailableError as error:
                if self.is_over:
                    raise SupersededError(
                        f"the state of changefeed {self._changefeed} is not saved: this capture is not the owner any "
                        "more, or stops. What is not saved comes again."
                    ) from error
                log.warning("etcd is away; the state waits for it", changefeed=str(self._changefeed), reason=str(error))

    def _superseded(self) -> SupersededError:
        if self._client.get(self._keys.info(self._changefeed)) is None:
            reason = "it has been removed"
        else:
            reason = "another capture is its owner"
        return SupersededError(f"the state of changefeed {self._changefeed} cannot be saved: {reason}.")

    def _write_part(self, put: Put) -> None:
        assert self._claim is not None
        if self._client.commit([self._claim.condition], [put]) is None:
            raise self._superseded()

    def packed(self, state: ChangefeedState) -> tuple[bytes, list[Put]]:
        """The value of the state's key, and the parts that it speaks of, where it is large."""
        content = zlib.compress(state_document(state), 1)
        self._number += 1
        if len(content) <= _LARGEST_VALUE:
            # The number makes each save's value its own: that tells whether one with a lost answer was carried out.
            return _WHOLE + b"%x-%x:" % (self._revision, self._number) + content, []
        prefix = f"{self._keys.parts(self._changefeed)}{self._revision:x}-{self._number:x}-"
        pieces = range(0, len(content), _LARGEST_VALUE)
        puts = [Put(f"{prefix}{i:03}", content[at : at + _LARGEST_VALUE]) for i, at in enumerate(pieces)]
        return _PART + orjson.dumps([put.key for put in puts]), puts

    def _whole(self, value: bytes) -> tuple[bytes, list[str]]:
        if value.startswith(_WHOLE):
            return zlib.decompress(value.split(b":", 2)[2]), []
        if not value.startswith(_PART):
            raise ValueError("it was written by another version of tidemill")
        keys = [str(key) for key in orjson.loads(value.removeprefix(_PART))]
        return zlib.decompress(b"".join(self._read_parts(keys))), keys

    def _read_parts(self, keys: list[str]) -> Iterator[bytes]:
        for key in keys:
            found = self._client.get(key)
            if found is None:
                raise ValueError(f"{key} is missing")
            yield found.value


def founding(client: EtcdClient, keys: Keys, changefeed: ChangefeedKey, state: ChangefeedState) -> list[Change]:
    """What makes a new changefeed continue where ``state`` is, for the transaction that creates it. Blocks."""
    value, parts = EtcdHome(client, keys, changefeed, None, Path()).packed(state)
    for part in parts:  # they do not count before the state does that names them
        client.commit([IsAt(keys.state(changefeed), 0)], [part])
    return [
        Put(keys.state(changefeed), value),
        Put(keys.status(changefeed), status_document(state, None)),
        Put(keys.name(changefeed), state.changefeed_id.encode()),
    ]


def removal(keys: Keys, changefeed: ChangefeedKey) -> list[Delete]:
    """All that there is of a changefeed, for one transaction."""
    return [
        Delete(keys.info(changefeed)),
        Delete(keys.status(changefeed)),
        Delete(keys.state(changefeed)),
        Delete(keys.name(changefeed)),
        Delete(keys.parts(changefeed), is_prefix=True),
    ]
