"""What users ask of changefeeds, as transactions of etcd: each is carried out as a whole, or refused."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tidemill.capture.cluster.feeds import new_epoch
from tidemill.capture.etcd.client import Change, Condition, EtcdClient, IsAt, Put
from tidemill.capture.etcd.documents import info_document, read_info
from tidemill.capture.etcd.home import EtcdHome, founding, removal
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.metadata import ChangefeedState
from tidemill.clock import SYSTEM_CLOCK, Clock
from tidemill.control.admission import not_found
from tidemill.errors import ChangefeedExistsError, MetadataError
from tidemill.model.cluster import AdminJob, ChangefeedInfo, FeedState, NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts

_TRIES = 10


class Changes:
    """Any thread; calls block."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client, self._keys, self._clock = client, keys, clock

    def draft(self, new: NewChangefeed, start_ts: Ts, upstream_id: int) -> ChangefeedInfo:
        """As it would be stored."""
        return ChangefeedInfo(
            new.key,
            upstream_id,
            new.sink_uri,
            datetime.fromtimestamp(self._clock.now(), UTC),
            start_ts,
            new.target_ts,
            new.config,
            FeedState.NORMAL,
            AdminJob.NONE,
            f"v{version('tidemill')}",
            new_epoch(None, self._clock),
            start_ts,
            start_ts,
            initial_copy=new.initial_copy,
        )

    def create(self, info: ChangefeedInfo, state: ChangefeedState | None = None) -> ChangefeedInfo:
        """It is stored when this returns. ``state``: where it continues. Raises ChangefeedExistsError."""
        keys = self._keys
        conditions: list[Condition] = [IsAt(keys.info(info.key), 0), IsAt(keys.status(info.key), 0)]
        changes: list[Change] = [Put(keys.info(info.key), info_document(info))]
        if state is not None:
            changes += founding(self._client, keys, info.key, state)
        if self._client.commit(conditions, changes) is None:
            raise ChangefeedExistsError(
                f"cannot create changefeed {info.key.id!r} in namespace {info.key.namespace!r}: there is one of that "
                "name. Choose another name, or remove that one first."
            )
        return info

    def all(self) -> list[ChangefeedInfo]:
        """Those that can be read."""
        found = []
        for entry in self._client.prefix(f"{self._keys.base}/"):
            key = self._keys.changefeed_of(entry.key)
            if key is not None:
                with suppress(MetadataError):
                    found.append(read_info(entry.value, key))
        return found

    def checkpoint_ts(self, info: ChangefeedInfo) -> Ts:
        """That was saved last."""
        state = EtcdHome(self._client, self._keys, info.key, None, Path()).load()
        return state.checkpoint_ts if state is not None else info.start_ts

    def name(self, key: ChangefeedKey) -> str | None:
        """By which the upstream and downstreams know it."""
        found = self._client.get(self._keys.name(key))
        return found.value.decode() if found is not None else None

    def write(self, info: ChangefeedInfo, revision: int) -> bool:
        """False: somebody has changed it meanwhile."""
        put = Put(self._keys.info(info.key), info_document(info))
        return self._client.commit([IsAt(self._keys.info(info.key), revision)], [put]) is not None

    def read(self, key: ChangefeedKey) -> tuple[ChangefeedInfo, int]:
        """Raises ChangefeedNotFoundError."""
        found = self._client.get(self._keys.info(key))
        if found is None:
            raise not_found(key, (info.key for info in self.all()))
        return read_info(found.value, key), found.mod_revision

    def set_state(self, key: ChangefeedKey, allowed: set[FeedState], state: FeedState, job: AdminJob) -> bool:
        """False: it is in a state in which that means nothing. What ran of it is of an old epoch afterwards."""
        for _ in range(_TRIES):
            info, revision = self.read(key)
            if info.state not in allowed:
                return False
            epoch = new_epoch(info, self._clock)
            error = None if state.is_running else info.error
            if self.write(replace(info, state=state, admin_job=job, epoch=epoch, error=error, warning=None), revision):
                return True
        raise MetadataError(f"changefeed {key} is being changed all the time. Try again.")

    def remove(self, key: ChangefeedKey) -> bool:
        """False: there was none."""
        if self._client.get(self._keys.info(key)) is None:
            return False
        self._client.commit([], removal(self._keys, key))
        return True
