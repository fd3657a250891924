"""URIs of lakes."""

import pytest

from tidemill.errors import SinkUriError
from tidemill.sinks.files.uri import DateSeparator
from tidemill.sinks.lake import LakeKind, is_lake_uri, parse_lake_uri
from tidemill.sinks.registry import read_sink_uri


@pytest.mark.parametrize(
    ("uri", "kind", "root", "is_s3"),
    [
        ("iceberg:///data/w", LakeKind.ICEBERG, "/data/w", False),
        ("iceberg+s3://b/p?catalog=http://c", LakeKind.ICEBERG, "b/p", True),
        ("delta:///data/l/", LakeKind.DELTA, "/data/l", False),
        ("delta+s3://b", LakeKind.DELTA, "b", True),
        ("file:///data/o?protocol=parquet", LakeKind.PARQUET, "/data/o", False),
        ("s3://b/p?protocol=parquet", LakeKind.PARQUET, "b/p", True),
    ],
)
def test_each_kind_of_lake_has_its_uri(uri: str, kind: LakeKind, root: str, is_s3: bool) -> None:
    found = parse_lake_uri(uri)
    assert is_lake_uri(uri)
    assert (found.kind, found.storage.root, found.storage.is_s3) == (kind, root, is_s3)


@pytest.mark.parametrize("uri", ["file:///o?protocol=csv", "s3://b/p", "blackhole://", "mysql://h/", "nothing"])
def test_other_uris_are_no_lakes(uri: str) -> None:
    assert not is_lake_uri(uri)
    with pytest.raises(SinkUriError, match="is no lake"):
        parse_lake_uri(uri)


def test_every_parameter_is_read() -> None:
    found = parse_lake_uri(
        "iceberg:///w?namespace=a.b&catalog=http://c&flush-interval=500ms&file-size=4096&compression=SNAPPY"
        "&changefeed=orders&keep-snapshots=7&worker-count=600"
    )
    assert (found.namespace, found.catalog, found.flush_interval_seconds) == (("a", "b"), "http://c", 0.5)
    assert (found.file_size, found.compression, found.changefeed) == (4096, "snappy", "orders")
    assert (found.keep_snapshots, found.worker_count) == (7, 512)
    parquet = parse_lake_uri("file:///o?protocol=parquet&date-separator=month")
    assert parquet.date_separator is DateSeparator.MONTH


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("iceberg:///w?namespac=x", "unknown sink URI parameter 'namespac'. Did you mean 'namespace'?"),
        ("iceberg:///w?zzz=x", "unknown sink URI parameter 'zzz'. Known are"),
        ("delta:///w?namespace=x", "'namespace' is for iceberg only"),
        ("iceberg:///w?date-separator=day", "'date-separator' is for parquet only"),
        ("delta:///w?file-size=1", "'file-size' is '1'; it must be a number of bytes"),
        ("delta:///w?flush-interval=11m", "'flush-interval' is '11m'; it must be at most 10m"),
        ("delta:///w?flush-interval=soon", "it must be a duration such as"),
        ("delta:///w?compression=rar", "it must be zstd, snappy, gzip, lz4 or none"),
        ("delta:///w?worker-count=0", "it must be a whole number, 1 or more"),
        ("delta:///w?file-size=4096&file-size=4096", "'file-size' is given twice"),
        ("iceberg+s3://b/p", "needs a catalog"),
        ("iceberg:///w?catalog=", "'catalog' is this value; it must be the URI of a catalog"),
        ("delta:///w?access-key=k", "'access-key' is for s3:// only"),
        ("delta:///w?worker-count=²", "it must be a whole number, 1 or more"),
        ("delta:///w?file-size=²²²²", "it must be a number of bytes"),
        ("delta:///w?flush-interval=²s", "it must be a duration such as"),
        ("iceberg:///w?namespace=a..b", "'namespace' is 'a..b'; it must be names with a dot between them"),
        ("iceberg:///w?catalog=http://[", "'catalog' is this value; it must be the URI of a catalog"),
    ],
)
def test_what_is_wrong_is_named(uri: str, said: str) -> None:
    with pytest.raises(SinkUriError) as raised:
        parse_lake_uri(uri)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "uri",
    [
        "iceberg://[",
        "delta://[x",
        "iceberg+s3://[?catalog=http://c",
        "delta+s3://b]/p",
        "s3://[x?protocol=parquet",
        "s3://[",
        "file://[?protocol=parquet",
        "file://[?protocol=csv",
    ],
)
def test_a_uri_that_cannot_be_taken_apart_is_refused_without_a_traceback(uri: str) -> None:
    with pytest.raises(SinkUriError, match="cannot read the sink URI"):
        read_sink_uri(uri)


def test_secrets_are_not_shown() -> None:
    found = parse_lake_uri("iceberg+s3://b/p?catalog=postgresql://me:PASS@h/d&access-key=AKIA&secret-access-key=SECRET")
    assert not any(word in repr(found) for word in ("PASS", "AKIA", "SECRET"))
