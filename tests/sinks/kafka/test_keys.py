"""Keys of RawKV on the whole way into a real broker, as JSON and as Avro; units run in threads in place of Spark's."""

import asyncio
import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.capture.rawkv import running
from tests.e2e.rawkv import Loop, Writer
from tests.kafka import Broker, Found
from tidebox.upstream import EmbeddedUpstream
from tidemill.capture.options import RunOptions
from tidemill.clock import SYSTEM_CLOCK
from tidemill.model.keys import KeyRange
from tidemill.testing.schema_registry import StandInRegistry

Change = dict[str, Any]
STEPS = 20


@pytest.mark.parametrize("protocol", ["rawkv-json", "rawkv-avro"])
def test_each_key_has_its_last_value_in_one_partition(
    broker: Broker, topic: str, tmp_path: Path, protocol: str
) -> None:
    with (
        EmbeddedUpstream.start(stores=2, api_version=2, resolved_interval_seconds=0.05) as source,
        StandInRegistry() as registry,
        Loop() as loop,
    ):
        source.split(b"r\0\0\0cold/0200")
        writer, keys = Writer(loop, source, 3), KeyRange(safe_interval_seconds=0.2)
        start_ts = keys.before(source.tso())
        writer.steps(STEPS)
        end_ts = source.tso()
        more = f"&schema-registry={registry.uri}" if protocol == "rawkv-avro" else ""
        uri = broker.uri(topic, f"protocol={protocol}&partition-num=3{more}")
        options = RunOptions(
            pd=source.pd_address, sink_uri=uri, data_dir=tmp_path / "data", keys=keys, start_ts=start_ts
        )

        async def story() -> None:
            async with running(options, tmp_path / "run") as run:
                while run.owner.owned.checkpoint_ts < end_ts:
                    run.check()
                    await SYSTEM_CLOCK.sleep(0.05)

        asyncio.run(story())
        held: dict[bytes, bytes] = {}
        partitions: dict[bytes, int] = {}
        read = json_change if protocol == "rawkv-json" else avro_reader(registry)
        for number, messages in enumerate(broker.messages(topic)):
            for change in filter(None, map(read, messages)):
                key = change["key"]
                assert partitions.setdefault(key, number) == number
                held.pop(key, None)
                if change["op"] == "put" and not change.get("expiry"):
                    held[key] = change["value"]
        ending = {key for key in writer.pairs(b"", b"") if writer.ttl(key)}
        everything = writer.pairs(b"", b"")  # again: of what has ended since then nobody tells the time it had
        assert held == {key: value for key, value in everything.items() if key not in ending}
        assert len(set(partitions.values())) == 3
        writer.close()


def json_change(message: Found) -> Change | None:
    change = json.loads(message.value or b"")
    if change["op"] == "resolved":
        return None
    decoded = {name: base64.b64decode(change[name]) for name in ("key", "value") if name in change}
    assert message.key == decoded["key"]
    return {**change, **decoded}


def avro_reader(registry: StandInRegistry) -> Callable[[Found], Change | None]:
    (text,) = registry.texts.values()
    schema = fastavro.parse_schema(json.loads(text))

    def read(message: Found) -> Change:
        change = fastavro.schemaless_reader(io.BytesIO((message.value or b"")[5:]), schema, None)
        assert isinstance(change, dict)
        assert message.key == change["key"]
        return change

    return read
