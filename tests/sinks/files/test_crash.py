"""The process dies after any single step on the file system: then each change is there once, and in order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flow.encoder.samples import COMMIT_TS, ITEM, column, table_of
from tests.rounds import examples
from tests.sinks.folders import DIGITS, config_for, data, ddl, messages, tree
from tests.sinks.halves import FileHalves, file_sink
from tests.sinks.moments import START
from tidemill.flow.encoder import Encoded
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import Ts, compose
from tidemill.sinks.files import write_files
from tidemill.sinks.files.durable import DurableFiles


class Crash(Exception):
    """The process dies here."""


class Mortal(DurableFiles):
    """Dies after so many steps; a write dies with half of its bytes on the disk."""

    def __init__(self, root: str, lives: Callable[[], None]) -> None:
        super().__init__(root)
        self._live = lives

    def step_open(self, path: str) -> BinaryIO:
        file = super().step_open(path)
        try:
            self._live()
        except Crash:
            file.close()
            raise
        return file

    def step_append(self, file: BinaryIO, chunk: Any) -> None:
        view = memoryview(chunk).cast("B")
        file.write(view[: len(view) // 2])
        self._live()
        file.write(view[len(view) // 2 :])
        self._live()

    def step_sync(self, file: BinaryIO) -> None:
        self._live()  # the disk itself does not fail here

    def step_rename(self, source: str, target: str) -> None:
        super().step_rename(source, target)
        self._live()

    def step_make_folder(self, path: str) -> None:
        super().step_make_folder(path)
        self._live()

    def step_sync_folder(self, path: str) -> None:
        self._live()

    def step_remove(self, path: str) -> None:
        super().step_remove(path)
        self._live()

    def step_clear(self, path: str) -> None:
        super().step_clear(path)
        self._live()


class Changefeed:
    """Runs batches and DDLs over a sink that may die at any step; its own state file never breaks."""

    OTHER = table_of(column("a", ColumnType.LONG), name="other", table_id=109)
    WIDER = table_of(*ITEM.columns, column("c", ColumnType.LONG), version_ts=COMMIT_TS + 20)
    NEXT_DAY = compose(1_700_000_000_000 + 86_400_000)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: Any = None
        self.done = 0  # steps of the plan that are durable
        self.steps_left = -1

    def plan(self) -> list[Callable[[FileHalves], Any]]:
        def batch(to_ts: int, *units: tuple[TableInfo, list[Encoded]]) -> Callable[[FileHalves], Any]:
            def run(sink: FileHalves) -> Any:
                receipts = [
                    write_files(sink.target(table, table.id, (Ts(0), Ts(to_ts))), iter(encoded), self.files())
                    for table, encoded in units
                ]
                return sink.commit(Ts(to_ts), receipts)

            return run

        item = messages((COMMIT_TS, "i1\n"), (COMMIT_TS + 1, "i2\n"))
        return [
            batch(COMMIT_TS + 1, (ITEM, [item]), (self.OTHER, [messages((COMMIT_TS, "o1\n"))])),
            batch(COMMIT_TS + 5, (ITEM, [messages(*[(COMMIT_TS + 2 + n, "x" * 700 + f"{n}\n") for n in range(4)])])),
            lambda sink: sink.ddl(ddl(COMMIT_TS + 20, self.WIDER)),
            batch(self.NEXT_DAY, (self.WIDER, [messages((COMMIT_TS + 21, "w1\n"))]), (self.OTHER, [])),
        ]

    def files(self) -> Mortal:
        return Mortal(str(self.root), self._live)

    def _live(self) -> None:
        if self.steps_left == 0:
            raise Crash
        self.steps_left -= 1

    def run(self, steps: int) -> bool:
        """Start, recover, go on until all is done (True) or the process dies after so many steps (False)."""
        self.steps_left = steps
        try:
            sink = file_sink(config_for(self.root, DIGITS + "&file-size=1024"), self.state, files=self.files())
            sink.recover(START)
            plan = self.plan()
            while self.done < len(plan):
                result = plan[self.done](sink)
                self.state = json.loads(json.dumps(result)) if result is not None else self.state
                self.done += 1
                sink.publish(Ts(COMMIT_TS + self.done))
            sink.publish(Ts(COMMIT_TS + self.done))
        except Crash:
            return False
        return True


def expected_tree(root: Path) -> dict[str, str]:
    feed = Changefeed(root)
    assert feed.run(-1)
    return tree(root)


def steps_of(root: Path) -> int:
    feed = Changefeed(root)
    assert feed.run(10**6)
    return 10**6 - feed.steps_left


def test_a_crash_after_any_step_leaves_each_change_there_exactly_once(tmp_path: Path) -> None:
    expected = expected_tree(tmp_path / "whole")
    assert "".join(data(tmp_path / "whole").values()).count("\n") == 8
    for steps in range(steps_of(tmp_path / "counted")):
        feed = Changefeed(tmp_path / f"after-{steps}")
        assert not feed.run(steps)
        _check_what_readers_see(feed, expected)
        assert feed.run(-1)
        assert tree(feed.root) == expected, f"died after step {steps}"


def _check_what_readers_see(feed: Changefeed, expected: dict[str, str]) -> None:
    """A reader that goes by the index files sees, even now, nothing but files of the final tree."""
    for index in feed.root.rglob("CDC.index"):
        newest = int(index.read_text()[3:9])
        for number in range(1, newest + 1):
            file = index.parent.parent / f"CDC{number:06d}.json"
            assert file.read_text() == expected[str(file.relative_to(feed.root))]


@pytest.mark.parametrize("first", [7, 23, 41, 60])
def test_a_crash_during_recovery_is_recovered_from(tmp_path: Path, first: int) -> None:
    expected = expected_tree(tmp_path / "whole")
    for second in range(25):
        feed = Changefeed(tmp_path / f"after-{first}-{second}")
        assert not feed.run(first)
        feed.run(second)
        assert feed.run(-1)
        assert tree(feed.root) == expected, f"died after step {first}, then {second}"


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12))
def test_any_number_of_crashes(tmp_path_factory: Any, deaths: list[int]) -> None:
    root = tmp_path_factory.mktemp("crashes")
    expected = expected_tree(root / "whole")
    feed = Changefeed(root / "broken")
    for steps in deaths:
        feed.run(steps)
    assert feed.run(-1)
    assert tree(feed.root) == expected
