"""Each DDL at each state, with writers of both versions: nothing is lost, nothing reads wrong, no index is off.

``sweep`` says what is checked for every statement; the page in the docs shows what came of them.
"""

import pytest

from tests.tidebox.sql.ddl.cases import CASES
from tests.tidebox.sql.ddl.stream import upstream
from tests.tidebox.sql.ddl.sweep import HEAD, PAGE, Sweep

# The last step after which a job can still be undone.
LAST = {
    "ADD COLUMN with a default": 3,
    "DROP COLUMN and its index": 0,
    "MODIFY COLUMN, not null": 1,
    "CHANGE COLUMN, lossy and renamed": 4,
    "ADD UNIQUE INDEX": 4,
    "ADD PRIMARY KEY": 4,
    "several: add and drop a column, add an index": 9,
    "several: a lossy change among others": 9,
    "RENAME TABLE": 0,
    "DROP TABLE": 0,
}
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def world():
    with upstream() as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(world):
    yield
    world[1].forget()


def shown(name: str) -> list[str]:
    """The lines of a case in the page: the first names it, the others leave it out."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line not in HEAD]
    begin = next((at for at, line in enumerate(lines) if line.startswith(f"| {name} |")), len(lines))
    end = begin + 1
    while end < len(lines) and lines[end].startswith("|  |"):
        end += 1
    return lines[begin:end]


@pytest.mark.parametrize("name", BY_NAME)
def test_writers_of_both_versions_at_each_state(world, name):
    swept = Sweep(*world, BY_NAME[name]).run()
    assert not swept.is_undone
    assert swept.lines() == shown(name), "write the page anew: python -m tests.tidebox.sql.ddl.sweep"


def test_the_page_shows_each_case_once():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line not in HEAD]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines if not line.startswith("|  |")] == list(BY_NAME)


@pytest.mark.parametrize(("name", "step"), [(name, step) for name, last in LAST.items() for step in range(last + 2)])
def test_a_job_cancelled_at_each_state(world, name, step):
    sweep = Sweep(*world, BY_NAME[name], cancel_at=step)
    swept = sweep.run()
    assert swept.is_undone == (step <= LAST[name])
    assert swept.is_too_late == (step > LAST[name])
    assert (swept.table == sweep.before) == swept.is_undone
