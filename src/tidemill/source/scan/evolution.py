"""What a DDL changes for a reader whose output has a fixed form. Pure.

A stream presents every row in the form that its table had when the query was started. Where a later form has other
columns, or columns of other types, rows would lose values without a word: the reader has to stop before them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.source.scan.history import Stretch
from tidemill.source.scan.present import Presenter, same_column


@dataclass(frozen=True, slots=True)
class Change:
    """Rows with commit-ts above ``ts`` have another form; ``differences`` says which, a phrase each."""

    ts: Ts
    differences: tuple[str, ...]


def first_change(presenter: Presenter, stretches: Iterable[Stretch]) -> Change | None:
    """The first form that came after the presenter's own and would be presented otherwise."""
    changes = (
        Change(form.since_ts, tuple(differences(presenter, form.table)))
        for stretch in stretches
        for form in stretch.forms
        if form.since_ts >= presenter.table.version_ts
    )
    return min((change for change in changes if change.differences), key=lambda change: change.ts, default=None)


def differences(presenter: Presenter, table: TableInfo) -> list[str]:
    """How the output would differ if it were that of ``table``; the order of columns does not matter."""
    wanted = presenter.chosen_names
    later = [c for c in table.stored_columns if wanted is None or c.name.lower() in wanted]
    found = []
    seen: set[int] = set()
    for column in presenter.columns:
        same = same_column(table, column)
        if same is None:
            found.append(f"column {column.name!r} dropped")
            continue
        seen.add(same.id)
        if same.name.lower() != column.name.lower():
            found.append(f"column {column.name!r} renamed to {same.name!r}")
            continue
        before, after = presenter.type_of(column), presenter.type_of(same)
        if before != after:
            found.append(f"column {column.name!r} changed from {before} to {after}")
    return found + [f"column {column.name!r} added" for column in later if column.id not in seen]


def cut(stretches: Iterable[Stretch], to_ts: Ts) -> list[Stretch]:
    """Only what lies at or below ``to_ts``."""
    kept = []
    for stretch in stretches:
        if stretch.from_ts < to_ts:
            forms = tuple(form for form in stretch.forms if form.since_ts < to_ts)
            kept.append(replace(stretch, to_ts=Ts(min(stretch.to_ts, to_ts)), forms=forms))
    return kept
