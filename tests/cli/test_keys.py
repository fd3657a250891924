"""Keys as options, as they reach a server in the changefeed's file."""

from typing import Any

import pytest

from tidemill.cli.keys import pairs_of, with_keys
from tidemill.config.changefeed import read_config
from tidemill.errors import ConfigError, UsageError
from tidemill.model.keys import KeyApi, KeyFilter, KeyRange
from tidemill.model.keytext import KeyFormat

FILE = {"filter": {"key-prefix": "a"}, "keys": {"safe-interval": "1s"}}


@pytest.mark.parametrize(
    ("uri", "starts", "ends", "more", "keys"),
    [
        pytest.param("blackhole://", [], [], {}, None, id="nothing is asked for: tables"),
        pytest.param("tikv://h", [], [], {}, KeyRange(), id="a sink of keys takes all of them"),
        pytest.param("kafka://h/t", ["61"], [], {}, KeyRange(b"a"), id="a start"),
        pytest.param("kafka://h/t", [""], [""], {}, KeyRange(), id="all keys"),
        pytest.param("kafka://h/t", [""], [], {}, KeyRange(), id="all keys, by an empty start"),
        pytest.param(
            "tikv://h", ["c", "a"], ["", "b"], {"form": KeyFormat.raw}, KeyRange(b"c", more=((b"a", b"b"),)), id="two"
        ),
        pytest.param(
            "kafka://h/t",
            [],
            [],
            {"api": KeyApi.txn, "keyspace": "k"},
            KeyRange(keyspace="k", api=KeyApi.txn),
            id="txn",
        ),
        pytest.param(
            "tikv://h",
            [],
            [],
            {"document": FILE},
            KeyRange(safe_interval_seconds=1.0, filter=KeyFilter((b"a",))),
            id="the file says it",
        ),
    ],
)
def test_options_become_a_section_of_the_file(
    uri: str, starts: list[str], ends: list[str], more: dict[str, Any], keys: KeyRange | None
) -> None:
    given = {"document": None, "form": KeyFormat.hex, "keyspace": None, "span_count": 2, "api": KeyApi.raw, **more}
    pairs = pairs_of(starts, ends) if starts or ends else None
    document = with_keys(given.pop("document"), uri, pairs, **given)
    assert read_config(document or {}).keys == keys


def test_each_range_needs_both_ends() -> None:
    with pytest.raises(UsageError, match="--start-key is given 2 times and --end-key 0 times"):
        pairs_of(["a", "b"], [])


@pytest.mark.parametrize(
    ("document", "says"),
    [
        pytest.param(
            {"keys": {"start-key": "zz"}}, "'keys' is not right: --start-key 'zz' is not a key in hex", id="hex"
        ),
        pytest.param({"keys": {"start-key": "62", "end-key": "61"}}, "is inverted", id="inverted"),
        pytest.param({"keys": {"span-count": 0}}, "must be a whole number from 1 to 64", id="no part"),
        pytest.param({"filter": {"key-prefix": "a"}}, "'filter.key-prefix' is for keys", id="a filter without keys"),
        pytest.param({"keys": {"ranges": [{"from": "61"}]}}, "'keys.ranges.0..from' is unknown", id="an unknown key"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_key(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(document)
