"""What etcd says of the cluster at one moment. Looking takes two reads, whatever the cluster's size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.capture.etcd.client import EtcdClient, Put
from tidemill.capture.etcd.documents import Place, capture_document, place_document, read_capture, read_info, read_place
from tidemill.capture.etcd.election import Elected, Election
from tidemill.capture.etcd.keys import META_VERSION, Keys
from tidemill.capture.etcd.session import Session
from tidemill.errors import MetadataError, SessionLostError
from tidemill.log import get_logger
from tidemill.model.cluster import CaptureInfo, ChangefeedInfo
from tidemill.model.schedule import CaptureId, ChangefeedKey

log = get_logger("cluster")


@dataclass(frozen=True, slots=True)
class Stored:
    """A changefeed's info, and the revision of its key."""

    info: ChangefeedInfo
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``places``: where captures are reached by others. ``captures`` have what TiCDC tells of them."""

    owner: Elected | None = None
    captures: Mapping[CaptureId, CaptureInfo] = field(default_factory=dict)
    places: Mapping[CaptureId, Place] = field(default_factory=dict)
    feeds: Mapping[ChangefeedKey, Stored] = field(default_factory=dict)

    def running(self, key: ChangefeedKey) -> ChangefeedInfo | None:
        stored = self.feeds.get(key)
        return stored.info if stored is not None and stored.info.state.is_running else None


class Registry:
    """Of one capture's session. Calls block."""

    def __init__(self, client: EtcdClient, keys: Keys, session: Session, info: CaptureInfo) -> None:
        self._client, self._keys, self._session, self._info = client, keys, session, info
        self._election = Election(client, keys, session, info.id)
        self._unreadable: set[str] = set()

    def register(self, address: str, *, is_stopping: bool = False) -> None:
        """Be there: in TiCDC's words, and where other captures reach this one."""
        lease, keys = self._session.lease, self._keys
        version = self._client.get(keys.meta_version)
        if version is None:
            self._client.put(keys.meta_version, META_VERSION)
        elif version.value != META_VERSION:
            raise MetadataError(
                f"etcd holds metadata of version {version.value[:20]!r} for cluster {keys.cluster!r}, and this is "
                "version 1. Use the version of Tidemill or TiCDC that wrote them, or another --cluster-id."
            )
        puts = [
            Put(keys.capture(self._info.id), capture_document(self._info), lease),
            Put(keys.place(self._info.id), place_document(Place(address, is_stopping)), lease),
        ]
        self._client.commit([], puts)

    def stand(self) -> None:
        self._election.stand()

    def resign(self) -> None:
        self._election.resign()

    def look(self) -> Snapshot:
        """Raises SessionLostError where this capture is not registered any more."""
        elected = self._election.look()
        owner = elected.capture if elected is not None else None
        captures: dict[CaptureId, CaptureInfo] = {}
        feeds: dict[ChangefeedKey, Stored] = {}
        for entry in self._client.prefix(f"{self._keys.base}/"):
            key = self._keys.changefeed_of(entry.key)
            try:
                if key is not None:
                    feeds[key] = Stored(read_info(entry.value, key), entry.mod_revision)
                elif entry.key.startswith(self._keys.captures):
                    found = read_capture(entry.value, owner, self._keys.cluster)
                    captures[found.id] = found
            except MetadataError as error:
                if entry.key not in self._unreadable:
                    self._unreadable.add(entry.key)
                    log.error("etcd holds what cannot be read; it is left alone", key=entry.key, reason=str(error))
        if self._info.id not in captures:
            raise SessionLostError(f"capture {self._info.id} is not registered any more: its session has ended.")
        places = {
            CaptureId(entry.key.removeprefix(self._keys.places)): read_place(entry.value)
            for entry in self._client.prefix(self._keys.places)
        }
        return Snapshot(elected, captures, places, feeds)
