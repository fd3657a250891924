"""A folder of ``tidemill run`` that a cluster takes over: given once, to one, and only where it fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.etcd import Etcd, running
from tidemill.capture.cluster.changes import Changes
from tidemill.capture.cluster.taking_over import continued, starting_at, state_of
from tidemill.capture.etcd.home import EtcdHome
from tidemill.capture.etcd.keys import Keys
from tidemill.capture.metadata import ChangefeedState, DataDir
from tidemill.errors import ChangefeedExistsError, DataDirError, UsageError
from tidemill.model.cluster import NewChangefeed
from tidemill.model.schedule import ChangefeedKey
from tidemill.model.ts import Ts

KEY = ChangefeedKey("default", "shop")
STATE = ChangefeedState(
    7, "file:///out?protocol=canal-json", Ts(100), Ts(200), Ts(200), 5, {"9": 150}, {"a": 1},
    changefeed_id="tidemill-0123", behind={"12": Ts(210)}, base_ts=Ts(250), term=3,
)  # fmt: skip
DOCUMENT = {"format": 1, **asdict(STATE)}


@contextmanager
def opened(path: Path) -> Iterator[DataDir]:
    found = DataDir(path)
    found.acquire()
    try:
        yield found
    finally:
        found.release()


def test_a_folder_that_was_given_away_is_run_no_more(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.save(STATE)
        assert folder.give("changefeed 'shop'") == DOCUMENT
    with opened(tmp_path) as folder:
        with pytest.raises(DataDirError, match="has been taken over by changefeed 'shop', which continues it"):
            folder.load()
        assert folder.give("changefeed 'shop'") == DOCUMENT  # the answer was lost, say
        with pytest.raises(DataDirError, match="has been taken over by changefeed 'shop'"):
            folder.give("changefeed 'other'")
        folder.keep()
        assert folder.load() == STATE


def test_a_folder_of_an_earlier_version_is_known_by_its_path(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.save(replace(STATE, changefeed_id=""))
        assert folder.give("x")["changefeed_id"] == folder.former_name


def test_a_folder_without_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirError, match="is the folder of no changefeed"):
        DataDir(tmp_path).give("x")
    assert not (tmp_path / "taken-over").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"start_ts": Ts(5)}, "continued where it stands", id="a start-ts"),
        pytest.param({"initial_copy": True}, "continued where it stands", id="an initial copy"),
        pytest.param({"state": {}}, "is not understood", id="no state"),
        pytest.param({"state": {**DOCUMENT, "checkpoint_ts": -1}}, "checkpoint_ts is missing or", id="an odd ts"),
        pytest.param({"state": {**DOCUMENT, "format": 99}}, "by another version", id="another version's"),
        pytest.param({"state": {**DOCUMENT, "more": 1}}, "is not understood", id="an unknown field"),
        pytest.param({"state": {**DOCUMENT, "changefeed_id": ""}}, "no changefeed_id", id="no name"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        state_of(NewChangefeed(KEY, "file:///out", **{"state": DOCUMENT, **change}))


def test_a_state_is_continued_under_the_new_name() -> None:
    new = NewChangefeed(KEY, "file:///out", state=DOCUMENT)
    state = state_of(new)
    assert state == STATE
    assert starting_at(new, state).start_ts == 200
    assert continued(STATE, KEY, 7, STATE.sink) == replace(STATE, name="shop")
    assert state_of(NewChangefeed(KEY, "file:///out")) is None


@pytest.mark.parametrize(
    ("state", "cluster_id", "place", "said"),
    [
        pytest.param(STATE, 8, STATE.sink, "reads the upstream 7, and the captures read 8", id="another upstream"),
        pytest.param(STATE, 7, "file:///elsewhere?protocol=canal-json", "Give the same --sink-uri", id="another sink"),
        pytest.param(replace(STATE, keys="keys of x"), 7, STATE.sink, "captures keys of x", id="keys"),
    ],
)
def test_a_folder_of_something_else_is_refused(state: ChangefeedState, cluster_id: int, place: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        continued(state, KEY, cluster_id, place)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.mark.parametrize("tables", [3, 120_000], ids=["small", "in parts"])
def test_the_state_is_there_with_the_changefeed(etcd: Etcd, tmp_path: Path, tables: int) -> None:
    state = replace(STATE, behind={str(i): Ts((i * 0x9E3779B97F4A7C15) % (1 << 62)) for i in range(tables)})
    keys = Keys(f"c{tables}")
    with etcd.client() as client:
        changes = Changes(client, keys)
        info = changes.create(changes.draft(NewChangefeed(KEY, "blackhole://", state=DOCUMENT), Ts(100), 7), state)
        home = EtcdHome(client, keys, KEY, None, tmp_path)
        assert home.load() == state
        assert (home.changefeed_id(), changes.checkpoint_ts(info)) == (state.changefeed_id, 200)
        with pytest.raises(ChangefeedExistsError):
            changes.create(info, replace(state, checkpoint_ts=Ts(201)))
        assert home.load() == state
        changes.remove(KEY)
        assert client.prefix(f"{keys.ours}/") == []
