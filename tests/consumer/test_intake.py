"""What messages say: rows that wait for their schema, claim checks, and what stands behind them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from random import Random
from string import ascii_letters, digits
from typing import Any

import pyarrow as pa
import pytest

from tests.flow.encoder.samples import COMMIT_TS, KEY, NOT_NULL, column, rows_of, table_of
from tidemill.consumer.alignment import Alignment, Consistency, Position
from tidemill.consumer.intake import Intake
from tidemill.consumer.listening import Heard
from tidemill.consumer.staging import Staging
from tidemill.consumer.tables import Tables
from tidemill.consumer.topic import parse_topic
from tidemill.errors import CorruptDataError, UpstreamError, UsageError
from tidemill.flow.encoder.large import Compression
from tidemill.flow.reader import Received
from tidemill.model.table import ColumnType, TableInfo
from tidemill.model.ts import MAX_TS, Ts
from tidemill.sinks.kafka.speaking import claim_store

T = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20),
    column("v", ColumnType.VARCHAR, flen=20),
    name="t",
    update_ts=Ts(445600000000000001),
)
URI = "kafka://127.0.0.1:1/shop?protocol="
Told = tuple[bytes | None, bytes]


class World:
    """One topic without a broker."""

    def __init__(
        self, uri: str, folder: Path, schemas: tuple[TableInfo, ...] = (), meeting: Collection[tuple[str, str]] = ()
    ) -> None:
        self.kafka = parse_topic(uri)
        self.protocol: Any = self.kafka.protocol
        self.alignment = Alignment(range(2), Position(), Consistency.TRANSACTION, ddls_in_first_only=False)
        self.staging = Staging(folder)
        self.intake = Intake(self.kafka, Tables({}), self.alignment, self.staging, schemas, meeting)
        self.intake.listen({0: 0, 1: 0})
        self._ends = {0: 0, 1: 0, 2: 0}

    def hear(self, partition: int, *told: Told) -> None:
        first = self._ends[partition]
        end = self._ends[partition] = first + len(told)
        keys, values = (pa.array([each[n] for each in told], pa.binary()) for n in (0, 1))
        self.intake.take(Heard(partition, first, end, Received(keys, values), tuple(range(first, end))))

    def rows(self, *ids: int, store: Any = None, text: str = "x") -> list[Told]:
        rows = rows_of(T, *((None, {"id": n, "v": text}) for n in ids), ts=[COMMIT_TS + n for n in ids])
        made = self.protocol.encoder(0, store).encode(rows) if store else self.protocol.encoder(0).encode(rows)
        return list(zip(made.message_keys() or [None] * len(made), made.messages(), strict=True))

    def resolved(self, n: int) -> Told:
        message = self.protocol.resolved(Ts(COMMIT_TS + n), 0)
        return message.key, message.value

    def schema(self) -> Told:
        return None, self.protocol.bootstrap(T, 0).value


def test_rows_wait_for_their_schema_and_so_does_every_resolved_ts_behind_them(tmp_path: Path) -> None:
    world = World(URI + "simple", tmp_path)
    world.hear(0, world.resolved(1), *world.rows(2, 3), world.resolved(5))
    assert (world.staging.rows, world.alignment.frontier_ts(0)) == (0, COMMIT_TS + 1)
    assert world.intake.restart_offset(0, Position()) == 1
    world.hear(0, *world.rows(6), world.resolved(7))
    assert world.alignment.frontier_ts(0) == COMMIT_TS + 1
    world.hear(0, world.schema(), *world.rows(8))
    assert (world.staging.rows, world.alignment.frontier_ts(0)) == (4, COMMIT_TS + 7)


def test_a_schema_that_goes_to_one_partition_is_known_in_all_and_after_a_restart(tmp_path: Path) -> None:
    world = World(URI + "simple", tmp_path / "a")
    world.hear(0, world.schema())
    world.hear(1, *world.rows(2))
    assert world.staging.rows == 1
    later = World(URI + "simple", tmp_path / "b", world.intake.schemas)
    later.hear(1, *later.rows(3))
    assert later.staging.rows == 1


def test_rows_whose_schema_never_comes_stop_it_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.consumer.intake._MOST_WAITING_BYTES", 1000)
    world = World(URI + "simple", tmp_path)
    with pytest.raises(CorruptDataError, match="from offset 0 on, need a schema that has not come"):
        world.hear(0, *world.rows(*range(1, 20)))


@pytest.mark.parametrize("kind", ["open-protocol", "simple", "canal-json&enable-tidb-extension=true"])
@pytest.mark.parametrize("compression", Compression)
def test_a_claim_check_is_read_from_where_it_lies(tmp_path: Path, kind: str, compression: Compression) -> None:
    claims = tmp_path / "claims"
    world = World(
        f"{URI}{kind}&large-message-handle-option=claim-check&claim-check-storage-uri=file://{claims}"
        f"&large-message-handle-compression={compression.value}",
        tmp_path / "staged", (replace(T, version_ts=T.update_ts),),
    )  # fmt: skip
    world.protocol = replace(world.protocol, max_message_bytes=700)
    text = "".join(Random(1).choices(ascii_letters + digits, k=2000))
    sent = world.rows(1, 2, store=claim_store(f"file://{claims}"), text=text)
    assert len(list(claims.iterdir())) == 2
    if kind == "simple":
        world.hear(0, world.schema())
    world.hear(0, *sent)
    (part,) = world.staging.plan({0: (Ts(0), MAX_TS)}, 100, is_whole=True).parts
    assert [(row["id"], len(row["v"])) for rows in part.read() for row in rows.new.to_pylist()] == [
        (1, 2000),
        (2, 2000),
    ]
    for file in claims.iterdir():
        file.unlink()
    with pytest.raises(UpstreamError, match="Restore the file"):
        world.hear(1, *sent)


def test_claim_checks_of_which_nobody_said_where_they_lie_are_refused(tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    option = f"&large-message-handle-option=claim-check&claim-check-storage-uri=file://{claims}"
    writer = World(URI + "open-protocol" + option, tmp_path / "w")
    writer.protocol = replace(writer.protocol, max_message_bytes=700)  # a path may be long
    sent = writer.rows(1, store=claim_store(f"file://{claims}"), text="y" * 1000)
    with pytest.raises(UsageError, match="claim-check-storage-uri"):
        World(URI + "open-protocol", tmp_path / "r").hear(0, *sent)


def test_a_row_of_which_only_the_key_was_sent_stops_it_and_is_named(tmp_path: Path) -> None:
    world = World(URI + "open-protocol&large-message-handle-option=handle-key-only", tmp_path)
    world.protocol = replace(world.protocol, max_message_bytes=300)
    with pytest.raises(CorruptDataError, match=r"offset 0 of partition 0 tells only the key of a row of shop\.t"):
        world.hear(0, *world.rows(1, text="y" * 1000))


def test_a_table_with_several_unique_keys_is_noticed(tmp_path: Path) -> None:
    world = World(URI + "open-protocol", tmp_path)
    world.hear(0, *world.rows(1))
    assert not world.intake.needs_togetherness
    several = replace(T, columns=(T.columns[0], replace(T.columns[1], flag=4)))
    several = table_of(*several.columns, name="t", uniques=[["v"]])
    rows = rows_of(several, (None, {"id": 5, "v": "a"}), ts=[COMMIT_TS + 5])
    made = world.protocol.encoder(0).encode(rows)
    world.hear(0, *zip(made.message_keys(), made.messages(), strict=True))
    assert world.intake.needs_togetherness


def test_rows_in_a_partition_that_was_added_without_a_word_stop_it(tmp_path: Path) -> None:
    world = World(URI + "open-protocol", tmp_path)
    world.intake.listen({2: 0})
    world.hear(2, world.resolved(1))
    with pytest.raises(UpstreamError, match=r"partition 2 of topic 'shop' has rows, and the topic had 2 partitions"):
        world.hear(2, *world.rows(5))


SEATS = table_of(
    column("id", ColumnType.LONGLONG, KEY, flen=20),
    column("a", ColumnType.LONGLONG, NOT_NULL, flen=20),
    name="Seats",
    uniques=[["a"]],
)


def seats(world: World, *ids: int) -> list[Told]:
    rows = rows_of(SEATS, *((None, {"id": n, "a": n}) for n in ids), ts=[COMMIT_TS + n for n in ids])
    made = world.protocol.encoder(0).encode(rows)
    return list(zip(made.message_keys() or (), made.messages(), strict=True))


def meeting(world: World, n: int, table: str = "Seats") -> Told:
    message = world.protocol.meet(Ts(COMMIT_TS + n), "shop", table)
    return message.key, message.value


def test_who_tells_of_meetings_lets_partitions_go_apart(tmp_path: Path) -> None:
    world = World(URI + "open-protocol", tmp_path / "a")
    world.hear(0, meeting(world, 0), *seats(world, 1), meeting(world, 1), *seats(world, 2))
    world.hear(1, meeting(world, 0), *seats(world, 3))
    assert world.intake.meeting == {("shop", "seats")}
    assert not world.intake.silent
    assert not world.intake.needs_togetherness
    again = World(URI + "open-protocol", tmp_path / "b", meeting=world.intake.meeting)
    again.hear(0, *seats(again, 4))
    assert not again.intake.needs_togetherness


@pytest.mark.parametrize("told", [[], ["other"]], ids=["of nothing", "of another table"])
def test_who_does_not_tell_of_them_holds_partitions_together(tmp_path: Path, told: list[str]) -> None:
    world = World(URI + "open-protocol", tmp_path)
    world.hear(0, *(meeting(world, 0, table) for table in told), *world.rows(1))
    assert not world.intake.needs_togetherness
    world.hear(0, *seats(world, 1), meeting(world, 1))
    assert (world.intake.silent, world.intake.needs_togetherness) == ({("shop", "t"), ("shop", "seats")}, True)
    assert ("shop", "seats") not in world.intake.meeting
