"""Messages of topics, damaged, through the readers: what is read is what a plain parser reads, the rest is refused by
itself, and messages beside a damaged one are read as if it were not there."""

import json
from functools import cache
from random import Random
from typing import Any

import pytest

from tests.flow.encoder.test_histories import recorded
from tests.flow.reader.plain import all_changes, received
from tests.fuzz.mutate import mutated, seeded
from tests.histories import load
from tidemill.flow.encoder.framing import framed, framed_key
from tidemill.flow.reader import Events
from tidemill.flow.reader.registry import READERS
from tidemill.model.event import DdlSeen, Unreadable

Message = tuple[bytes | None, bytes]
# As recorded from TiCDC, and the reader of it.
PROTOCOLS = {
    "open-protocol": "open-protocol",
    "canal-json-tidb": "canal-json",
    "simple": "simple",
    "debezium": "debezium",
}


@cache
def _messages(protocol: str) -> list[Message]:
    """Real ones of every kind, of tables of every type."""
    kinds = ("row", "ddl", "resolved")
    found = [m for kind in kinds for name in ("types", "ddl") for m in recorded(load(name), protocol, kind)]
    return [(message["key"] or None, message["value"]) for message in found]


def _damaged(chance: Random, message: Message, others: list[Message]) -> Message:
    key, value = message
    if key is not None and chance.random() < 0.3:
        return mutated(chance, key, [other for other, _ in others if other]), value
    if key is not None and chance.random() < 0.7:  # with a frame that is right
        return key, framed(mutated(chance, value[8:], [other[8:] for _, other in others]))
    return key, mutated(chance, value, [other for _, other in others])


def _by_message(events: Events, count: int) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in range(count)]
    for seen in events.rows:
        for image in (seen.rows.new, seen.rows.old):
            image.validate(full=True)
        only = [int(message) for message in seen.message]
        for message, change in zip(only, all_changes(Events([seen], [])), strict=True):
            found[message].append((seen.rows.table.full_name, change))
    for message, mark in events.marks:
        found[message].append(mark)
    for message in events.waiting:
        found[message].append("waiting")
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_damaged_messages_are_read_or_refused_by_themselves(protocol: str) -> None:
    reader = READERS[PROTOCOLS[protocol]]()
    reader.read(received(*_messages(protocol)))
    for chance in seeded(600):
        some = [chance.choice(_messages(protocol)) for _ in range(chance.randrange(1, 7))]
        at = chance.randrange(len(some))
        damaged = list(some)
        damaged[at] = _damaged(chance, some[at], some)
        expected = _by_message(reader.read(received(*some)), len(some))
        found = _by_message(reader.read(received(*damaged)), len(some))
        if any(isinstance(mark, DdlSeen) and mark.table_info for mark in found[at]):
            continue  # it described a table, and others are read by what it says
        assert found[:at] + found[at + 1 :] == expected[:at] + expected[at + 1 :]


def test_what_is_read_of_a_damaged_row_is_what_a_plain_parser_reads() -> None:
    messages = [m for m in _messages("open-protocol") if m[0] and b'"t":1}' in m[0]]
    reader = READERS["open-protocol"]()
    for chance in seeded(1500):
        key, value = chance.choice(messages)
        assert key is not None
        value = framed(mutated(chance, value[8:], [other[8:] for _, other in messages[:9]]))
        events = reader.read(received((key, value)))
        try:
            content = json.loads(value[8:], parse_constant=_refused)
        except (ValueError, RecursionError):
            assert [type(mark) for _, mark in events.marks] == [Unreadable]
            continue
        for _, old, new in all_changes(events):
            for image, members in ((new, "u"), (old, "dp")):
                told = next((content[m] for m in members if isinstance(content, dict) and content.get(m)), None)
                if image is not None and told is not None:
                    _compare(image, told)


def _compare(image: dict[str, Any], told: dict[str, Any]) -> None:
    for name, found in image.items():
        if name not in told:
            continue  # left out of an old row, since it did not change
        if isinstance(found, int) or found is None:
            assert found == told[name]["v"]
        elif isinstance(found, str) and told[name]["t"] < 249:
            assert found == told[name]["v"].encode("utf-8", "replace").decode() or "\ufffd" in found


def _refused(word: str) -> None:
    raise ValueError(word)


def test_random_bytes_are_no_message() -> None:
    for chance in seeded(200):
        some = [
            (chance.choice((None, b"", chance.randbytes(9), framed_key(chance.randbytes(5)))), chance.randbytes(20))
            for _ in range(4)
        ]
        for reader in READERS.values():
            events = reader().read(received(*some))
            assert events.rows == []
            assert {place for place, _ in events.marks} == {0, 1, 2, 3}
            assert {type(mark) for _, mark in events.marks} == {Unreadable}
