"""Folders of the file sink as tests see them: what lies where, and batches made by hand."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tests.flow.encoder.samples import ITEM
from tests.sinks.halves import FileHalves
from tidemill.flow.encoder import Encoded
from tidemill.model.ddl import ActionType, DdlEvent
from tidemill.model.table import TableInfo
from tidemill.model.ts import Ts
from tidemill.sinks.files import SinkConfig, parse_sink_uri, write_files
from tidemill.sinks.files.durable import DurableFiles

DAY = "shop/item/445600000000000001/2023-11-14"
DIGITS = "&file-index-digit=6"


class QuickFiles(DurableFiles):
    """Does not wait for the disk, which is not what is tested."""

    def step_sync(self, file: BinaryIO) -> None:
        pass

    def step_sync_folder(self, path: str) -> None:
        pass


def config_for(root: Path, more: str = DIGITS, protocol: str = "canal-json") -> SinkConfig:
    return parse_sink_uri(f"file://{root}?protocol={protocol}{more}")


def messages(*texts_by_ts: tuple[int, str]) -> Encoded:
    data = [text.encode() for _, text in texts_by_ts]
    ends = np.cumsum([len(d) for d in data], dtype=np.int64)
    return Encoded(pa.py_buffer(b"".join(data)), ends, np.array([ts for ts, _ in texts_by_ts], dtype=np.uint64))


def tree(root: Path) -> dict[str, str]:
    """Every file below ``root`` that readers may look at, and its content."""
    files = {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}
    return {name: text for name, text in files.items() if name != ".generation"}


def data(root: Path) -> dict[str, str]:
    return {name: text for name, text in tree(root).items() if "/meta/" not in name and name != "metadata"}


def write_batch(sink: FileHalves, to_ts: int, *batches: Encoded, table: TableInfo = ITEM, id: int = 108) -> Any:
    """One batch as the changefeed runs it, its state made durable by whoever keeps the result."""
    receipt = write_files(sink.target(table, id, (Ts(0), Ts(to_ts))), iter(batches))
    state = json.loads(json.dumps(sink.commit(Ts(to_ts), [receipt])))
    sink.publish(Ts(to_ts))
    return state


def ddl(finished_ts: int, table: TableInfo | None, action: int = ActionType.ADD_COLUMN, **more: Any) -> DdlEvent:
    query = more.pop("query", "alter table item add column c int")
    name = table.name if table else ""
    return DdlEvent(Ts(finished_ts), Ts(finished_ts - 1), 0, action, action, query, "shop", name, table, **more)
