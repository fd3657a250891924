"""Sink URIs: what each parameter does, and what is said about one that is wrong."""

import pickle
from typing import Any

import pytest

from tidemill.errors import SinkUriError
from tidemill.flow.encoder import (
    BinaryEncoding,
    CanalJson,
    CanalJsonEncoder,
    CountingEncoder,
    Csv,
    CsvEncoder,
)
from tidemill.sinks.files.uri import DateSeparator, Scheme, SinkConfig, parse_sink_uri

FILES = "file:///data/out?protocol=canal-json"
RECORDS = "file:///data/out?protocol=csv"


def test_a_blackhole_needs_nothing_and_never_splits() -> None:
    config = parse_sink_uri("blackhole://")
    assert config == SinkConfig(Scheme.BLACKHOLE)
    assert isinstance(config.messages.encoder(0), CountingEncoder)
    assert not config.splits_updates


def test_defaults_are_those_of_ticdc_but_for_the_flush_interval() -> None:
    config = parse_sink_uri(FILES)
    assert config == SinkConfig(Scheme.FILE, "/data/out", protocol=CanalJson())
    assert (config.file_size, config.date_separator, config.file_index_digits) == (67108864, DateSeparator.DAY, 20)
    assert config.terminator == b"\r\n"
    assert parse_sink_uri(RECORDS).protocol == Csv(",", '"', "\\N", False, False, BinaryEncoding.BASE64, False)
    assert config.flush_interval_seconds == 0
    assert config.splits_updates


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (FILES + "&enable-tidb-extension=true", {"protocol": CanalJson(enable_tidb_extension=True)}),
        (FILES + "&content-compatible=1", {"protocol": CanalJson(content_compatible=True)}),
        (
            FILES + "&only-output-updated-columns=true&delete-only-output-handle-key-columns=T",
            {"protocol": CanalJson(False, True, True)},
        ),
        (FILES + "&flush-interval=5s", {"flush_interval_seconds": 5.0}),
        (FILES + "&flush-interval=1m30s", {"flush_interval_seconds": 90.0}),
        (FILES + "&flush-interval=250ms", {"flush_interval_seconds": 0.25}),
        (FILES + "&flush-interval=0", {"flush_interval_seconds": 0.0}),
        (FILES + "&flush-interval=1h", {"flush_interval_seconds": 600.0}),
        (FILES + "&file-size=1048576", {"file_size": 1048576}),
        (FILES + "&file-size=1", {"file_size": 1024}),
        (FILES + "&file-size=99999999999", {"file_size": 536870912}),
        (FILES + "&date-separator=none", {"date_separator": DateSeparator.NONE}),
        (FILES + "&date-separator=MONTH", {"date_separator": DateSeparator.MONTH}),
        (FILES + "&file-index-digit=6", {"file_index_digits": 6}),
        (FILES + "&file-index-digit=3", {"file_index_digits": 20}),
        (FILES + "&output-raw-change-event=true", {"output_raw_change_event": True}),
        (FILES + "&output-column-id=true", {"output_column_id": True}),
        (FILES + "&worker-count=4", {"worker_count": 4}),
        (FILES + "&worker-count=9999", {"worker_count": 512}),
        (FILES + "&enable-partition-separator=true&transaction-atomicity=table", {}),
        ("FILE:///data/out?protocol=Canal-JSON", {}),
        ("file://localhost/data/out/?protocol=canal-json", {}),
        ("file:///with%20space?protocol=canal-json", {"path": "/with space"}),
        (FILES + "&terminator=%0A", {"terminator": b"\n"}),
        (FILES + "&terminator=\\n", {"terminator": b"\n"}),
    ],
)  # fmt: skip
def test_parameters(uri: str, expected: dict[str, Any]) -> None:
    base = {"scheme": Scheme.FILE, "path": "/data/out", "protocol": CanalJson()}
    assert parse_sink_uri(uri) == SinkConfig(**{**base, **expected})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("&delimiter=%09", Csv(delimiter="\t")),
        ("&delimiter=\\t", Csv(delimiter="\t")),
        ("&delimiter=%7C%2B%7C&quote='", Csv(delimiter="|+|", quote="'")),
        ("&quote=", Csv(quote="")),
        ("&null=NULL&include-commit-ts=true", Csv(null="NULL", include_commit_ts=True)),
        (
            "&output-old-value=true&output-field-header=true",
            Csv(output_old_value=True, output_field_header=True),
        ),
        ("&binary-encoding-method=hex", Csv(binary_encoding=BinaryEncoding.HEX)),
    ],
)
def test_csv_parameters(more: str, expected: Csv) -> None:
    config = parse_sink_uri(RECORDS + more)
    assert config.protocol == expected
    assert isinstance(config.messages.encoder(0), CsvEncoder)
    assert config.extension == ".csv"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("fil:///x?protocol=csv", r"unknown scheme 'fil' .* Did you mean 'file'\?"),
        ("blackhol://", r"Did you mean 'blackhole'\?"),
        ("ftp://x", r"unknown scheme 'ftp' in the sink URI\. Write mysql://"),
        ("/data/out", r"has no scheme\. Write mysql://"),
        ("", r"has no scheme"),
        ("pulsar://h:6650/t?protocol=canal-json", r"scheme 'pulsar' are not supported\. Write mysql://"),
        ("file://[x?protocol=csv", r"cannot read the sink URI"),
        ("file:///data/out", r"'protocol=csv' to its parameters, or 'protocol=parquet' for tables"),
        ("file:///data/out?protocl=csv", r"sink URI parameter 'protocl' is unknown\. Did you mean 'protocol'\?"),
        ("file:///?protocol=csv", r"names no folder\. Give an absolute one: file:///folder"),
        ("file://data/out?protocol=csv", r"names 'data' where a host would stand\. Give an absolute folder"),
        (FILES + "&file-sise=5", r"unknown sink URI parameter 'file-sise'\. Did you mean 'file-size'\?"),
        (FILES + "&zzz=5", r"unknown sink URI parameter 'zzz'\. Known are .*date-separator"),
        (FILES + "&file-size=1k", r"'file-size' is '1k'; it must be a whole number"),
        (FILES + "&file-size=1&file-size=2", r"'file-size' is given twice"),
        (FILES + "&flush-interval=5", r"'flush-interval' is '5'; it must be a duration such as 5s"),
        (FILES + "&flush-interval=", r"must be a duration"),
        (FILES + "&flush-interval=-5s", r"must be a duration"),
        (FILES + "&date-separator=days", r"must be none, year, month or day\. Did you mean 'day'\?"),
        (FILES + "&enable-tidb-extension=yes", r"'enable-tidb-extension' is 'yes'; it must be true or false"),
        (FILES + "&worker-count=0", r"'worker-count' is '0'; it must be a whole number, 1 or more"),
        (FILES + "&enable-partition-separator=false", r"must be true: rows of several partitions .* commit order"),
        (FILES + "&transaction-atomicity=global", r"must be none or table"),
        (FILES + "&terminator=", r"must be the end of a line"),
        (FILES + "&file-expiration-days=3", r"'file-expiration-days' is not supported: files are kept until"),
        (FILES + "&flush-concurrency=3", r"'flush-concurrency' is not supported"),
        (FILES + "&delimiter=;", r"'delimiter' belongs to protocol csv, not to canal-json"),
        (RECORDS + "&enable-tidb-extension=true", r"belongs to protocol canal-json, not to csv"),
        ("blackhole://?content-compatible=true", r"belongs to protocol canal-json, not to a sink without one"),
        ("blackhole://?file-size=5000", r"'file-size' means nothing to a blackhole"),
        ("file:///x?protocol=canal-jsn", r"'canal-jsn'; it must be canal-json or csv\. Did you mean 'canal-json'\?"),
        ("file:///x?protocol=open-protocol", r"must be canal-json or csv: TiCDC's other protocols"),
        (RECORDS + "&delimiter=abcd", r"must be one to three characters"),
        (RECORDS + "&delimiter=%0A", r"must be one to three characters other than line ends"),
        (RECORDS + "&quote=''", r"must be one ASCII character"),
        (RECORDS + "&quote=%C3%A9", r"must be one ASCII character"),
        (RECORDS + "&quote=;&delimiter=;", r"'quote' and 'delimiter' share the character ';'"),
        (RECORDS + "&binary-encoding-method=hax", r"must be base64 or hex\. Did you mean 'hex'\?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(uri: str, message: str) -> None:
    with pytest.raises(SinkUriError, match=message):
        parse_sink_uri(uri)


def test_a_blackhole_with_a_protocol_encodes_what_it_drops() -> None:
    assert isinstance(parse_sink_uri("blackhole://?protocol=canal-json").messages.encoder(0), CanalJsonEncoder)


def test_a_config_travels_to_executors() -> None:
    config = parse_sink_uri(FILES + "&enable-tidb-extension=true")
    assert pickle.loads(pickle.dumps(config)) == config
