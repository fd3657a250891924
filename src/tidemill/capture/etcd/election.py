"""Which capture is the owner: the one whose key below ``owner/`` is the oldest.

The key is tied to the session, so it goes when the session does. Its revision is the owner's *term*: each later owner's
is higher. Whatever an owner writes is written on the condition that its key is still what it was (``Claim``), so one
that is late is refused by etcd itself.
"""

from dataclasses import dataclass

from tidemill.capture.etcd.client import Delete, EtcdClient, IsAt, Put
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.etcd.session import Session
from tidemill.errors import SessionLostError
from tidemill.model.schedule import CaptureId


@dataclass(frozen=True, slots=True)
class Claim:
    """Of an owner. ``revision``: its term."""

    key: str
    revision: int

    @property
    def condition(self) -> IsAt:
        return IsAt(self.key, self.revision)


@dataclass(frozen=True, slots=True)
class Elected:
    """``is_me``: then ``claim`` is the one to write with."""

    capture: CaptureId
    claim: Claim
    is_me: bool


class Election:
    """Of one session. Calls block."""

    def __init__(self, client: EtcdClient, keys: Keys, session: Session, capture: CaptureId) -> None:
        self._client, self._keys, self._session, self._capture = client, keys, session, capture
        self._key = keys.owner(session.lease)
        self._has_stood = False

    def stand(self) -> None:
        """Be a candidate. Again and again does no harm."""
        put = Put(self._key, str(self._capture).encode(), self._session.lease)
        if self._client.commit([IsAt(self._key, 0)], [put]) is None and self._client.get(self._key) is None:
            raise SessionLostError(f"capture {self._capture} cannot stand for election: its session has ended.")
        self._has_stood = True

    def resign(self) -> None:
        """Let another one be the owner."""
        self._has_stood = False
        self._client.commit([], [Delete(self._key)])

    def look(self) -> Elected | None:
        """Who is the owner now; None: nobody. A candidate whose key somebody has removed stands again, behind all
        others."""
        found = self._client.prefix(self._keys.owners, first_created=True)
        if self._has_stood and (not found or found[0].key != self._key) and self._client.get(self._key) is None:
            self.stand()
        if not found:
            return None
        first = found[0]
        claim = Claim(first.key, first.mod_revision)
        return Elected(CaptureId(first.value.decode(errors="replace")), claim, first.key == self._key)
