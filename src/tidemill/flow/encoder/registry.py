"""Which protocols there are, and which of them, with which options, a sink URI means."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.clock import SYSTEM_CLOCK
from tidemill.columnar.encoded import Encoded
from tidemill.config.keys import MESSAGES, QUEUE, Key, boolean, text, whole_number
from tidemill.config.sink_uri import SHOWN
from tidemill.config.values import boolean_of, sentence
from tidemill.errors import SinkUriError, suggestion
from tidemill.flow.encoder.avro import Avro
from tidemill.flow.encoder.canal_json import CanalJson
from tidemill.flow.encoder.canal_json_queue import CanalJsonQueue
from tidemill.flow.encoder.csv import Csv
from tidemill.flow.encoder.debezium import Debezium
from tidemill.flow.encoder.long_form import LongForm
from tidemill.flow.encoder.open_protocol import OpenProtocol
from tidemill.flow.encoder.port import Encoder, FileProtocol, MessageProtocol, Option, QueueProtocol
from tidemill.flow.encoder.raw_json import RawJson
from tidemill.flow.encoder.raw_queue import RawAvro, RawJsonQueue
from tidemill.flow.encoder.simple import Simple
from tidemill.model.row import RowBatch

FOR_FILES: Mapping[str, type[FileProtocol]] = {
    CanalJson.name: CanalJson,
    Csv.name: Csv,
    RawJson.name: RawJson,
}

FOR_QUEUES: Mapping[str, type[QueueProtocol]] = {
    OpenProtocol.name: OpenProtocol,
    CanalJsonQueue.name: CanalJsonQueue,
    Simple.name: Simple,
    Debezium.name: Debezium,
    Avro.name: Avro,
    LongForm.name: LongForm,
    RawJsonQueue.name: RawJsonQueue,
    RawAvro.name: RawAvro,
}

P = TypeVar("P", bound=MessageProtocol)


def read_protocol(
    kinds: Mapping[str, type[P]], name: str | None, given: Mapping[str, str], others: Collection[str] = ()
) -> P | None:
    """The protocol ``name`` of ``kinds``, with the options in ``given``: parameters of a sink URI that are not the
    sink's own, whose names are ``others``. Raises SinkUriError for one that no protocol knows, or another one."""
    options = kinds[name].options if name is not None else {}
    fields = {}
    for parameter, value in given.items():
        option = options.get(parameter)
        if option is None:
            raise _misplaced(kinds, name, parameter, others)
        try:
            fields[option.field] = option.read(value)
        except ValueError as wanted:
            shown = repr(value) if parameter in SHOWN else "this value"
            raise SinkUriError(f"sink URI parameter {parameter!r} is {shown}; it must be {sentence(wanted)}") from None
    return kinds[name](**fields) if name is not None else None


def _misplaced(kinds: Mapping[str, type[P]], name: str | None, parameter: str, others: Collection[str]) -> SinkUriError:
    owners = [kind.name for kind in kinds.values() if parameter in kind.options]
    if owners:
        return SinkUriError(
            f"sink URI parameter {parameter!r} belongs to protocol {' and '.join(owners)}, not to "
            f"{name or 'a sink without one'}. Take it out, or change the protocol."
        )
    known = sorted({*others, *(option for kind in kinds.values() for option in kind.options)})
    hint = suggestion(parameter, known) or f" Known are {', '.join(known)}."
    return SinkUriError(f"unknown sink URI parameter {parameter!r}.{hint}")


def protocol_keys() -> dict[str, Key]:
    """The options of protocols as keys of a changefeed's file. They become parameters of the sink URI."""
    of_files = {option.key for kind in FOR_FILES.values() for option in kind.options.values()}
    return {
        option.key: Key(
            _in_files(option),
            option.default if option.default.startswith("`") else f"`{option.default}`",
            "See the sink URI's parameter of this name.",
            parameter,
            MESSAGES if option.key in of_files else QUEUE,
        )
        for kind in (*FOR_FILES.values(), *FOR_QUEUES.values())
        for parameter, option in kind.options.items()
        if option.key
    }


def _in_files(option: Option) -> Callable[[Any], Any]:
    if option.read is boolean_of:
        return boolean
    return whole_number if option.is_number else text


class CountingEncoder:
    """Messages of no bytes, for a sink that only counts."""

    def encode(self, rows: RowBatch) -> Encoded:
        return Encoded(pa.py_buffer(b""), np.zeros(len(rows), dtype=np.int64), rows.commit_ts)


@dataclass(frozen=True, slots=True)
class Messages:
    """The form in which a sink of files writes messages. Small and picklable: it travels to executors."""

    protocol: FileProtocol | None = None  # None: rows are counted, not encoded
    terminator: bytes = b"\r\n"

    def encoder(self, built_ms: int) -> Encoder:
        """``built_ms`` is the build time that messages carry: one for all of a unit."""
        return CountingEncoder() if self.protocol is None else self.protocol.encoder(built_ms, self.terminator)

    def encode(self, rows: Iterator[RowBatch]) -> Iterator[Encoded]:
        encoder = self.encoder(int(SYSTEM_CLOCK.now() * 1000))
        return (encoder.encode(batch) for batch in rows)
