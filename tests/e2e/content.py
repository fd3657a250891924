"""What a folder of the file sink says, without what two captures of one history may differ in.

They may cut batches, and so files, at other places, and canal-json notes the time of writing.
"""

from pathlib import Path
from typing import NamedTuple

from tests.e2e import tree


class Place(NamedTuple):
    schema: str
    table: str
    version: int
    folder: str


class Content(NamedTuple):
    rows: dict[Place, list[str]]  # messages in the order in which a consumer meets them
    schemas: dict[str, bytes]  # schema files by path
    checkpoint_ts: int


def read(root: Path) -> Content:
    tree.check_layout(root)
    rows: dict[Place, list[str]] = {}
    for file in tree.data_files(root):
        place = Place(file.schema, file.table, file.version, file.folder)
        rows.setdefault(place, []).extend(map(tree.identity, file.messages()))
    schemas = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("meta/schema_*.json"))}
    return Content(rows, schemas, tree.checkpoint(root))


def assert_same(found: Content, expected: Content) -> None:
    """Each change exactly once, in the same order, under the same schema; a difference is shown briefly."""
    assert found.checkpoint_ts == expected.checkpoint_ts
    assert sorted(found.rows) == sorted(expected.rows)
    for place, messages in expected.rows.items():
        assert len(found.rows[place]) == len(messages), f"{place}: not as many messages as there should be"
        for number, (ours, theirs) in enumerate(zip(found.rows[place], messages, strict=True)):
            assert ours == theirs, f"{place}: message {number}"
    assert found.schemas == expected.schemas
