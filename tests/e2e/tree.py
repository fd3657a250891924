"""Reads a folder written by the file sink, as a consumer of TiCDC's storage layout would."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    schema: str
    table: str
    version: int
    folder: str  # partition id and date, as far as they are there
    index: int
    path: Path

    def messages(self) -> list[Message]:
        return [json.loads(line) for line in self.path.read_bytes().split(b"\r\n") if line]


def data_files(root: Path) -> list[DataFile]:
    """Every data file, in the order in which a consumer applies them."""
    found = []
    for path in root.rglob("CDC*.json"):
        schema, table, version, *folder, name = path.relative_to(root).parts
        index = int(re.fullmatch(r"CDC(\d+)\.json", name).group(1))  # type: ignore[union-attr]
        found.append(DataFile(schema, table, int(version), "/".join(folder), index, path))
    return sorted(found, key=lambda f: (f.version, f.folder, f.schema, f.table, f.index))


def messages(root: Path) -> Iterator[Message]:
    for file in data_files(root):
        yield from file.messages()


def schema_files(root: Path) -> list[Message]:
    """Every schema file, by version; those with a Query are DDLs."""
    found = [json.loads(path.read_text()) for path in root.rglob("meta/schema_*.json")]
    return sorted(found, key=lambda document: (document["TableVersion"], document["Schema"], document["Table"]))


def checkpoint(root: Path) -> int:
    ts: int = json.loads((root / "metadata").read_text())["checkpoint-ts"]
    return ts


def without_build_time(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "ts"}


def identity(message: Message) -> str:
    """A canonical text of a message, for comparing many of them as multisets."""
    return json.dumps(without_build_time(message), sort_keys=True, ensure_ascii=False)


def check_layout(root: Path) -> None:
    """Files of a folder are numbered without a gap, in commit order, and the index file names the last."""
    last: dict[Path, tuple[int, int]] = {}
    for file in data_files(root):
        index, commit_ts = last.get(file.path.parent, (0, 0))
        assert file.index == index + 1, f"{file.path} follows number {index}"
        for message in file.messages():
            assert message["_tidb"]["commitTs"] >= commit_ts, f"{file.path} goes back in time"
            commit_ts = message["_tidb"]["commitTs"]
        last[file.path.parent] = file.index, commit_ts
    for folder, (index, _) in last.items():
        named = (folder / "meta" / "CDC.index").read_text().strip()
        assert named == f"CDC{index:020d}.json", folder
