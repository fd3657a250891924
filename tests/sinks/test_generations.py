"""A task of a batch that was lost goes on at any moment of the recovery, or after it: nothing of it lands."""

import errno
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pytest

from tests.flow.encoder.samples import COMMIT_TS, FIRST, ITEM, rows_of
from tests.sinks.folders import DIGITS, QuickFiles, config_for, data, ddl, messages, write_batch
from tests.sinks.halves import FileHalves, LakeHalves, file_sink, lake_sink
from tests.sinks.moments import START, at
from tidemill.errors import SinkError, SinkUnavailableError, SupersededError
from tidemill.model.receipt import Receipt
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts
from tidemill.sinks.files import SinkConfig, write_files
from tidemill.sinks.files.layout import folder_name
from tidemill.sinks.lake import LakeOptions, parse_lake_uri, write_rows

PATIENCE_SECONDS = 60.0
Hook = Callable[[str], None]


class Stepping(QuickFiles):
    """Calls ``before`` ahead of every step that changes the folder."""

    def __init__(self, root: Path, before: Hook) -> None:
        super().__init__(str(root))
        self._before = before

    def step_open(self, path: str) -> BinaryIO:
        self._before("open")
        return super().step_open(path)

    def step_append(self, file: BinaryIO, chunk: Any) -> None:
        self._before("append")
        super().step_append(file, chunk)

    def step_rename(self, source: str, target: str) -> None:
        self._before("rename")
        super().step_rename(source, target)

    def step_make_folder(self, path: str) -> None:
        self._before("make folder")
        super().step_make_folder(path)

    def step_remove(self, path: str) -> None:
        self._before("remove")
        super().step_remove(path)

    def step_clear(self, path: str) -> None:
        self._before("clear")
        super().step_clear(path)


class Kind(Protocol):
    """A sink, and how the numbers of a batch are written to it."""

    def open(self, root: Path, files: Stepping) -> Any: ...

    def write(self, sink: Any, to_ts: int, numbers: range, files: Callable[[], Stepping]) -> Callable[[], Receipt]:
        """The work of a task: the target is taken now, the rest is done when it is called."""

    def read(self, root: Path) -> list[tuple[str, Any]]: ...


class Files:
    def open(self, root: Path, files: Stepping) -> FileHalves:
        return file_sink(config_for(root, DIGITS + "&file-size=1024"), None, files=files)

    def write(self, sink: Any, to_ts: int, numbers: range, files: Callable[[], Stepping]) -> Callable[[], Receipt]:
        target = sink.target(ITEM, 108, (Ts(0), Ts(to_ts)))
        encoded = messages(*[(COMMIT_TS + n, f"{n:02}" + "x" * 1100 + "\n") for n in numbers])
        return lambda: write_files(target, iter([encoded]), files())

    def read(self, root: Path) -> list[tuple[str, Any]]:
        """Every data file, also one that no index names: the next batch would meet it."""
        found = sorted(root.rglob("CDC*.json"))
        return [(str(p.relative_to(root)), [line[:2] for line in p.read_text().splitlines()]) for p in found]


class Parquet:
    def open(self, root: Path, files: Stepping) -> LakeHalves:
        return lake_sink(parse_lake_uri(f"file://{root}?protocol=parquet"), None, start_ts=Ts(1), files=files)

    def write(self, sink: Any, to_ts: int, numbers: range, files: Callable[[], Stepping]) -> Callable[[], Receipt]:
        # A row group is a file here, so that the task has several to publish.
        target = replace(sink.target(ITEM, 108, (Ts(0), Ts(to_ts))), row_group_rows=1, file_size=1)
        return lambda: write_rows(target, self._batches(numbers), files())

    def _batches(self, numbers: range) -> Iterator[RowBatch]:
        for n in numbers:
            yield rows_of(ITEM, (None, {**FIRST, "id": n}), ts=[COMMIT_TS + n])

    def read(self, root: Path) -> list[tuple[str, Any]]:
        import pyarrow.parquet as pq

        found = sorted(root.rglob("*.parquet"))
        return [(str(p.relative_to(root)), pq.ParquetFile(p).read()["id"].to_pylist()) for p in found]


KINDS: dict[str, Kind] = {"files": Files(), "parquet": Parquet()}


class Late(threading.Thread):
    """A task that is held ahead of its n-th step, until it is released and runs to its end."""

    def __init__(self, root: Path, hold_at: int) -> None:
        super().__init__(daemon=True)
        self.files = Stepping(root, self._step)
        self.work: Callable[[], Receipt]
        self.steps = 0
        self.held_ahead_of = ""
        self.is_over = False
        self.error: BaseException | None = None
        self._hold_at = hold_at
        self._held, self._released = threading.Event(), threading.Event()

    def _step(self, step: str) -> None:
        if self.steps == self._hold_at:
            self.held_ahead_of = step
            self._held.set()
            assert self._released.wait(PATIENCE_SECONDS)
        self.steps += 1

    def run(self) -> None:
        try:
            self.work()
        except SinkError as error:
            self.error = error
        self.is_over = True
        self._held.set()

    def begin(self, work: Callable[[], Receipt]) -> bool:
        """Run until it is held; False if it ended before."""
        self.work = work
        self.start()
        assert self._held.wait(PATIENCE_SECONDS)
        return not self.is_over

    def go_on(self) -> None:
        """Run to the end. Whoever calls waits: one of the two moves at a time."""
        self._released.set()
        self.join(PATIENCE_SECONDS)
        assert self.is_over


NEVER = -1


def story(kind: Kind, root: Path, hold_at: int, continue_at: int) -> tuple[Late, bool, int]:
    """A batch is lost and comes again, cut elsewhere. Its task is held at one step and goes on ahead of a step of
    what the driver and other tasks do meanwhile, or after all of them. Returns the task, whether it was held at all,
    and how many steps there were meanwhile."""
    late, steps = Late(root, hold_at), -1

    def meanwhile(_: str) -> None:
        nonlocal steps
        if steps >= 0:
            if steps == continue_at:
                late.go_on()
            steps += 1

    files = Stepping(root, meanwhile)
    root.mkdir(exist_ok=True)
    sink = kind.open(root, files)
    sink.recover(START)

    def batch(to: int, numbers: range) -> None:
        to_ts = Ts(COMMIT_TS + to)
        receipt = kind.write(sink, to_ts, numbers, lambda: files)()
        json.dumps(sink.commit(to_ts, [receipt]))
        sink.publish(to_ts)

    batch(1, range(2))
    work = kind.write(sink, COMMIT_TS + 3, range(2, 4), lambda: late.files)
    is_held = hold_at != NEVER and late.begin(work)
    if is_held or hold_at == NEVER:
        steps = 0
        sink.recover(at(COMMIT_TS + 1))
        batch(2, range(2, 3))
        batch(3, range(3, 4))
        batch(5, range(4, 6))
        if is_held and continue_at >= steps:
            late.go_on()
    return late, is_held, steps


def calm(kind: Kind, root: Path) -> list[tuple[str, Any]]:
    story(kind, root, NEVER, NEVER)
    return kind.read(root)


@pytest.mark.parametrize("name", KINDS)
def test_whenever_a_late_task_goes_on_nothing_of_it_lands(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    expected = calm(kind, tmp_path / "calm")
    hold_at = 0
    while True:
        late, is_held, steps = story(kind, tmp_path / f"held-{hold_at}", hold_at, 10**6)
        if not is_held:
            break
        # What was held earlier has a rename before it as well, so of those the ends are enough.
        moments = range(steps + 1) if late.held_ahead_of == "rename" else (0, steps)
        for continue_at in moments:
            root = tmp_path / f"held-{hold_at}-{continue_at}"
            late, _, _ = story(kind, root, hold_at, continue_at)
            assert kind.read(root) == expected, f"held ahead of step {hold_at}, went on ahead of {continue_at}"
            late.join()
        hold_at += 1
    assert hold_at > 5  # it was held at something


def test_a_task_that_starts_late_does_not_bring_its_generation_back(tmp_path: Path) -> None:
    sink = file_sink(config_for(tmp_path), None)
    sink.recover(START)
    target = sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    sink.recover(START)
    for _ in range(2):
        with pytest.raises(SupersededError):
            write_files(target, iter([messages((COMMIT_TS, "late\n"))]))
    assert len(list((tmp_path / ".tidemill/writer-main").iterdir())) == 1


def test_a_generation_that_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    files = QuickFiles(str(tmp_path))
    files.begin_generation("w/first")
    (tmp_path / ".tidemill/w/first/half.tmp").write_text("half")
    (tmp_path / ".tidemill/w-zeroth.gone").mkdir()  # by somebody who died on the way
    for _ in range(2):  # again does no harm
        files.begin_generation("w/second")
        assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == [
            ".tidemill",
            ".tidemill/w",
            ".tidemill/w/second",
        ]
    (tmp_path / ".tidemill/w/second/half.tmp").write_text("half")
    files.begin_generation("w/third", ["w/second"])
    assert [p.name for p in (tmp_path / ".tidemill/w").rglob("*")] == ["third"]
    assert files.publish_file("w/third", "a", [b"1", b"23"]) == 3
    assert (tmp_path / "a").read_bytes() == b"123"


def test_what_an_earlier_version_left_is_ended_and_its_mark_respected(tmp_path: Path) -> None:
    """Its only holder was the changefeed: its generations lay directly below."""
    (tmp_path / ".tidemill/3f2a").mkdir(parents=True)
    (tmp_path / ".tidemill/3f2a/half.tmp").write_text("half")
    mark = {"cluster": "7", "changefeed": "orders", "generation": "3f2a"}
    (tmp_path / ".generation").write_text(json.dumps(mark))
    with pytest.raises(SinkError, match="belongs to changefeed 'orders' of cluster 7"):
        file_sink(named_config(tmp_path, "orders-2"))
    file_sink(named_config(tmp_path, "orders")).recover(START)
    assert sorted(p.name for p in (tmp_path / ".tidemill").iterdir()) == ["owner", "writer-main"]


def test_a_disk_that_is_not_mounted_any_more_is_not_taken_for_a_newer_generation(tmp_path: Path) -> None:
    root = tmp_path / "out"
    sink = file_sink(config_for(root), None)
    sink.recover(START)
    target = sink.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS)))
    root.rename(tmp_path / "away")
    root.mkdir()
    with pytest.raises(SinkError, match="The folder has vanished: bring it back"):
        write_files(target, iter([messages((COMMIT_TS, "a\n"))]))
    with pytest.raises(SinkError, match=r"its file \.generation is gone\. Bring the folder back"):
        sink.recover(START)


def test_what_fills_the_disk_is_removed_again(tmp_path: Path) -> None:
    class Full(QuickFiles):
        def step_append(self, file: BinaryIO, chunk: Any) -> None:
            super().step_append(file, chunk)
            raise OSError(errno.ENOSPC, "No space left on device")

    files = Full(str(tmp_path))
    files.begin_generation("w/first")
    for write in (lambda: files.publish_file("w/first", "a", [b"1"]), lambda: files.replace("w/first", "a", b"1")):
        with pytest.raises(SinkUnavailableError, match="The disk is full"):
            write()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# Whose folder it is


def named_config(root: Path, changefeed: str, cluster_id: int = 7) -> SinkConfig:
    config = config_for(root).named(changefeed, cluster_id)
    assert isinstance(config, SinkConfig)
    return config


def parquet_options(root: Path, changefeed: str, cluster_id: int = 7) -> LakeOptions:
    options = parse_lake_uri(f"file://{root}?protocol=parquet").named(changefeed, cluster_id)
    assert isinstance(options, LakeOptions)
    return options


@pytest.mark.parametrize(
    ("cluster_id", "changefeed"),
    [pytest.param(7, "orders-2", id="another changefeed"), pytest.param(8, "orders", id="of another cluster")],
)
def test_another_ones_folder_is_refused_by_name(tmp_path: Path, cluster_id: int, changefeed: str) -> None:
    file_sink(named_config(tmp_path / "files", "orders"), None).recover(START)
    lake_sink(parquet_options(tmp_path / "parquet", "orders"), None, start_ts=Ts(1)).recover(START)
    says = (
        f"belongs to changefeed 'orders' of cluster 7, and this is changefeed '{changefeed}' of cluster {cluster_id}. "
        r"Give each .*\. To continue that one's folder .* remove .*/\.generation, and use its checkpoint as --start-ts"
    )
    with pytest.raises(SinkError, match=says):
        file_sink(named_config(tmp_path / "files", changefeed, cluster_id), None)
    with pytest.raises(SinkError, match=says):
        lake_sink(parquet_options(tmp_path / "parquet", changefeed, cluster_id), None, start_ts=Ts(1))


def test_a_folder_within_another_changefeeds_is_left_alone_by_that(tmp_path: Path) -> None:
    """It holds names of the same form, which the other would take for what an unfinished batch has left."""
    inner = file_sink(named_config(tmp_path / "outer/inner/files", "inner"), None)
    receipt = write_files(inner.target(ITEM, 108, (Ts(0), Ts(COMMIT_TS))), iter([messages((COMMIT_TS, "a\n"))]))
    inner.commit(Ts(COMMIT_TS), [receipt])  # and no index tells of it yet
    lake = lake_sink(parquet_options(tmp_path / "outer/inner/parquet", "lake"), None, start_ts=Ts(1))
    lake.recover(START)
    Parquet().write(lake, COMMIT_TS, range(1), lambda: Stepping(tmp_path / "outer/inner/parquet", lambda _: None))()
    (tmp_path / "outer/inner/files/.metadata.00000000.tmp").write_text("")  # is being written
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    files = file_sink(named_config(tmp_path / "outer", "outer"), None)
    files.recover(START)
    (tmp_path / "outer/.generation").unlink()
    lake_sink(parquet_options(tmp_path / "outer", "outer"), None, start_ts=Ts(1)).recover(START)
    assert set(before) <= set(tmp_path.rglob("*"))


def test_a_new_changefeed_is_refused_a_folder_within_another_ones(tmp_path: Path) -> None:
    file_sink(named_config(tmp_path / "outer", "orders"), None).recover(START)
    (tmp_path / "link").symlink_to(tmp_path / "outer/a")
    (tmp_path / "outer/a").mkdir()
    says = r"lies within .*/outer, which belongs to changefeed 'orders' of cluster 7.*Choose a folder outside"
    for place in ("outer/a", "outer/a/b", "link/b"):
        with pytest.raises(SinkError, match=says):
            file_sink(named_config(tmp_path / place, "second"), None)
        with pytest.raises(SinkError, match=says):
            lake_sink(parquet_options(tmp_path / place, "second"), None, start_ts=Ts(1))
    file_sink(named_config(tmp_path / "outer-2", "second"), None).recover(START)
    (tmp_path / "outer/.generation").rename(tmp_path / "away")
    file_sink(named_config(tmp_path / "outer/a", "second"), None).recover(START)
    (tmp_path / "away").rename(tmp_path / "outer/.generation")
    file_sink(named_config(tmp_path / "outer/a", "second"), {"format": 1, "folders": {}}).recover(START)  # it was first


def test_of_two_changefeeds_that_found_a_folder_empty_the_first_to_begin_has_it(tmp_path: Path) -> None:
    first, second = (file_sink(named_config(tmp_path, name), None) for name in ("orders", "orders-2"))
    first.recover(START)
    with pytest.raises(
        SinkError, match="belongs to changefeed 'orders' of cluster 7, and this is changefeed 'orders-2"
    ):
        second.recover(START)
    first.commit(Ts(10), [])


def test_a_state_from_before_what_the_folder_holds_is_refused(tmp_path: Path) -> None:
    """A data-dir was brought back from a copy. What came since is in the folder, and would be there twice."""
    sink = file_sink(named_config(tmp_path, "orders"), None, start_ts=Ts(5))
    old = write_batch(sink, 10, messages((10, "a\n")))
    new = write_batch(sink, 20, messages((20, "b\n")))
    before = data(tmp_path)
    with pytest.raises(SinkError, match=r"holds changes up to .*\(ts 20\).*state .* only up to .*\(ts 10\)"):
        file_sink(named_config(tmp_path, "orders"), old, start_ts=Ts(10), is_resumed=True)
    for checkpoint_ts in (20, 30):  # it is saved before it is told
        file_sink(named_config(tmp_path, "orders"), new, start_ts=Ts(checkpoint_ts), is_resumed=True).recover(START)
    assert data(tmp_path) == before


def test_a_changefeed_finds_its_own_folder_again(tmp_path: Path) -> None:
    for state in (None, {"format": 1, "folders": {}}):
        file_sink(named_config(tmp_path / "files", "orders"), state).recover(START)
        lake_sink(parquet_options(tmp_path / "parquet", "orders"), None, start_ts=Ts(1)).recover(START)


def test_a_driver_that_was_replaced_commits_nothing_and_recovers_nothing(tmp_path: Path) -> None:
    first = file_sink(named_config(tmp_path, "orders"), None)
    first.recover(START)
    second = file_sink(named_config(tmp_path, "orders"), None)
    second.recover(START)
    second.publish(Ts(10))
    steps = (
        lambda: first.commit(Ts(9), []),
        lambda: first.publish(Ts(9)),
        lambda: first.ddl(ddl(9, ITEM)),
        lambda: first.recover(START),
    )
    for step in steps:
        with pytest.raises(SupersededError, match="another process, writes there now"):
            step()
    assert json.loads((tmp_path / "metadata").read_text()) == {"checkpoint-ts": 10}
    assert not (tmp_path / "shop").exists()
    second.commit(Ts(10), [])


@pytest.mark.parametrize(
    ("start_ts", "says"),
    [
        pytest.param(9, r"up to .*\(ts 10\).* starts at .*\(ts 9\): they would be there twice", id="below"),
        pytest.param(11, r"\(ts 11\): the changes in between would be missing.* or --start-ts 10\.", id="above"),
    ],
)
def test_a_new_changefeed_continues_a_folder_exactly_at_its_checkpoint(
    tmp_path: Path, start_ts: int, says: str
) -> None:
    write_batch(file_sink(config_for(tmp_path / "files"), None, start_ts=Ts(5)), 10, messages((10, "a\n")))
    parquet = parse_lake_uri(f"file://{tmp_path}/parquet?protocol=parquet")
    lake_sink(parquet, None, start_ts=Ts(5)).publish(Ts(10))
    with pytest.raises(SinkError, match=says):
        file_sink(config_for(tmp_path / "files"), None, start_ts=Ts(start_ts))
    with pytest.raises(SinkError, match=says):
        lake_sink(parquet, None, start_ts=Ts(start_ts))
    file_sink(config_for(tmp_path / "files"), None, start_ts=Ts(10)).recover(START)
    lake_sink(parquet, None, start_ts=Ts(10)).recover(START)


@pytest.mark.parametrize("sink_of", [file_sink, lake_sink])
def test_a_changefeed_whose_state_was_lost_starts_where_its_folder_ends(sink_of: Any, tmp_path: Path) -> None:
    """Its data-dir still has the id under which the folder knows it. One that has its state may be ahead of it: its
    checkpoint is saved before it is told, and without a row there is no state of the sink."""
    options = named_config(tmp_path, "orders") if sink_of is file_sink else parquet_options(tmp_path, "orders")
    sink_of(options, None, start_ts=Ts(5)).recover(START)
    again = sink_of(options, None, start_ts=Ts(6))  # it was killed before it had saved anything
    again.recover(START)
    again.publish(Ts(10))
    with pytest.raises(SinkError, match="the changes in between would be missing"):
        sink_of(options, None, start_ts=Ts(12))
    sink_of(options, None, start_ts=Ts(10)).recover(START)
    sink_of(options, None, start_ts=Ts(12), is_resumed=True).recover(START)


def test_a_folder_whose_checkpoint_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    for content in (b"", b"{}", b'{"checkpoint-ts": "soon"}', b'{"checkpoint'):
        (tmp_path / "metadata").write_bytes(content)
        with pytest.raises(
            SinkError, match=r"cannot tell how far .*its file metadata names no.*Restore it, or choose an empty folder"
        ):
            file_sink(config_for(tmp_path), None, start_ts=Ts(5))
        file_sink(config_for(tmp_path), {"format": 1, "folders": {}}, start_ts=Ts(5))  # which goes by its own state


def test_no_database_shares_a_folder_with_what_is_ours() -> None:
    assert [folder_name(name) for name in (".tidemill", ".generation", "tidemill")] == [
        "%2Etidemill",
        "%2Egeneration",
        "tidemill",
    ]


@pytest.mark.parametrize("name", KINDS)
def test_a_late_task_is_told_that_it_was_superseded(name: str, tmp_path: Path) -> None:
    late, is_held, _ = story(KINDS[name], tmp_path / "out", 0, 10**6)
    assert is_held
    assert isinstance(late.error, SupersededError)
    assert "Nothing is lost" in str(late.error)
    assert not late.error.retryable
