"""What ``tidemill run`` and ``tidemill verify`` say of keys of RawKV that they cannot capture or compare."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_run_refusals import Tidemill, run_words, tidemill
from tidebox.upstream import EmbeddedUpstream

__all__ = ["tidemill"]  # a fixture

Clusters = dict[str, str]
FILES = "file://{tmp}/out?protocol=rawkv-json"


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with (
        EmbeddedUpstream.start() as old,
        EmbeddedUpstream.start(api_version=2) as source,
        EmbeddedUpstream.start(api_version=2) as target,
    ):
        yield {"{old}": old.pd_address, "{source}": source.pd_address, "{target}": target.pd_address}


def filled(changes: dict[str, str | None], clusters: Clusters) -> dict[str, str | None]:
    found = dict(changes)
    for name, value in found.items():
        for place, address in clusters.items():
            value = value.replace(place, address) if value is not None else None
        found[name] = value
    return found


BASE: dict[str, str | None] = {"pd": "{source}", "sink-uri": "tikv://{target}", "start-ts": None, "target-ts": None}


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        pytest.param({"start-key": "61", "end-key": "61"}, 2, "is empty: the start belongs to it", id="an empty range"),
        pytest.param({"start-key": "62", "end-key": "61"}, 2, "is inverted", id="an inverted range"),
        pytest.param({"key-pattern": "a("}, 2, r"key-pattern 'a\(' is not a regular expression", id="no pattern"),
        pytest.param({"key-prefix": "a\\"}, 2, "key-prefix 'a.*' is not an escaped key", id="no prefix"),
        pytest.param({"span-count": "65"}, 2, "--span-count.: .*less than or equal to 64", id="too many parts"),
        pytest.param({"start-key": "6"}, 2, r"--start-key '6' is not a key in hex", id="a key that is no hex"),
        pytest.param({"end-key": "a\\", "format": "escaped"}, 2, r"--end-key .* is not an escaped key", id="no escape"),
        pytest.param({"start-key": "61", "format": "base64"}, 2, "'base64' is not one of 'hex'", id="a format"),
        pytest.param({"keyspace": "nowhere"}, 2, "there is no keyspace 'nowhere' in the cluster", id="a keyspace"),
        pytest.param({"keyspace": ""}, 2, "--keyspace is empty", id="an empty keyspace"),
        pytest.param({"safe-interval": "soon"}, 2, "'soon' is not a duration", id="a duration"),
        pytest.param(
            {"pd": "{old}"}, 1, "does not serve RawKV of API V2.*have no timestamps", id="a cluster of API V1"
        ),
        pytest.param({"sink-uri": "tikv://{old}"}, 1, "the target TiKV: .*api-version", id="a target of API V1"),
        pytest.param(
            {"sink-uri": "tikv://{source}"}, 2, "would be captured again, for ever", id="target and source one"
        ),
        pytest.param(
            {"sink-uri": "mysql://root@h:1/", "start-key": ""}, 2, "takes tables, and keys", id="a sink of tables"
        ),
        pytest.param(
            {"sink-uri": FILES}, 2, "takes keys and values of RawKV, and this", id="tables for a sink of keys"
        ),
        pytest.param({"kv-api": "txn"}, 2, "those of transactions are captured", id="transactions into RawKV"),
        pytest.param({"sink-uri": "tikv://{target}/x"}, 2, "has a path", id="a path in the URI"),
        pytest.param({"start-ts": "2090-01-01"}, 2, "lies in the future", id="a start in the future"),
    ],
)
def test_keys_that_cannot_be_captured_are_named_with_what_to_do(
    tidemill: Tidemill, clusters: Clusters, tmp_path: Path, changes: dict[str, str | None], code: int, says: str
) -> None:
    said = tidemill(*run_words("", tmp_path, filled({**BASE, **changes}, clusters)))
    assert re.search(says, said.errors.replace("\n", " ")), said.errors
    assert (said.code, said.output) == (code, "")
    assert not (tmp_path / "data" / "changefeed.json").exists()  # nothing is bound to a value that was refused


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        pytest.param({"at": "2026-03-01"}, 2, "--at is for tables", id="a ts"),
        pytest.param({"start-key": "62", "end-key": "61"}, 2, "is inverted", id="an inverted range"),
        pytest.param({"sink-uri": "tikv://{source}"}, 2, "upstream and downstream are one cluster", id="one cluster"),
        pytest.param({"sink-uri": "blackhole://", "start-key": ""}, 2, "those of another TiKV", id="no TiKV"),
        pytest.param({"sink-uri": FILES}, 2, "files of rawkv-json cannot be compared", id="files of keys"),
        pytest.param({"pd": "{old}"}, 1, "does not serve RawKV of API V2", id="a cluster of API V1"),
    ],
)
def test_keys_that_cannot_be_compared_are_named_with_what_to_do(
    tidemill: Tidemill, clusters: Clusters, tmp_path: Path, changes: dict[str, str | None], code: int, says: str
) -> None:
    given = filled({"pd": "{source}", "sink-uri": "tikv://{target}", **changes}, clusters)
    words = [
        word for name, value in given.items() for word in (f"--{name}", str(value).replace("{tmp}", str(tmp_path)))
    ]
    said = tidemill("verify", *words)
    assert re.search(says, said.errors.replace("\n", " ")), said.errors
    assert said.code == code


def test_two_empty_clusters_are_equal(tidemill: Tidemill, clusters: Clusters) -> None:
    said = tidemill("verify", "--pd", clusters["{source}"], "--sink-uri", f"tikv://{clusters['{target}']}")
    assert (said.code, said.output) == (0, "Equal: 0 pairs, 0 bytes, in 1 range.\n")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(["61", "63", "62", "64"], r"the ranges \[61,63\) and \[62,64\) \(in hex\) overlap", id="overlap"),
        pytest.param(["61", "63", "62"], "--start-key is given 2 times and --end-key 1 times", id="an end is missing"),
    ],
)
def test_ranges_that_cannot_be_captured_together_are_refused(
    tidemill: Tidemill, clusters: Clusters, tmp_path: Path, given: list[str], says: str
) -> None:
    options = [word for n, key in enumerate(given) for word in (("--end-key" if n % 2 else "--start-key"), key)]
    said = tidemill(*run_words("", tmp_path, filled(BASE, clusters)), *options)
    assert said.code == 2
    assert re.search(says, said.errors.replace("\n", " ")), said.errors


def test_filters_of_tables_are_refused(tidemill: Tidemill, clusters: Clusters, tmp_path: Path) -> None:
    config = tmp_path / "feed.toml"
    config.write_text("[filter]\nrules = ['shop.*']\n")
    said = tidemill(*run_words("", tmp_path, filled({**BASE, "config": str(config)}, clusters)))
    assert said.code == 2
    assert "has filters, which are for tables" in said.errors.replace("\n", " ")
