"""What of a sink URI may be seen, and what of it says where the sink is."""

import pytest

from tidemill.config.sink_uri import HIDDEN, SHOWN, differences, loopbacks, place_of, safe_uri
from tidemill.errors import SinkUriError
from tidemill.sinks import read_sink_uri
from tidemill.sinks.files.storage import _KNOWN as STORAGE
from tidemill.sinks.files.uri import known_parameters
from tidemill.sinks.lake import options as lake
from tidemill.sinks.mysql.uri import PARAMETERS as MYSQL

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("blackhole://", "blackhole://"),
        ("file:///data/out?protocol=csv", "file:///data/out?protocol=csv"),
        ("file:///data/me@home?protocol=csv", "file:///data/me@home?protocol=csv"),
        ("mysql://root@h:3306/", "mysql://xxxxx@h:3306/"),
        (f"mysql://root:{SECRET}@h:3306/?worker-count=4", "mysql://xxxxx@h:3306/?worker-count=4"),
        (f"mysql://root:{SECRET}@[::1]:3306/", "mysql://xxxxx@[::1]:3306/"),
        (f"mysql://root:a/{SECRET}@h:3306/", "mysql://…"),
        (f"mysql://root:1/{SECRET}@h:3306/", "mysql://…"),
        (f"mysql://root:1?{SECRET}@h:3306/?worker-count=4", "mysql://…"),
        (f"mysql://root:a?{SECRET}@h:3306/", "mysql://…"),
        (f"mysql://root:a#{SECRET}@h:3306/", "mysql://…"),
        (f"mysql://root:{SECRET}", "mysql://…"),
        (f"mysql://root:1/{SECRET}", "mysql://…"),
        (f"mysql://[root:{SECRET}@h/", "mysql://xxxxx@h/"),
        (f"mysql://h/?password={SECRET}", "mysql://h/?…"),
        (f"mysql://h/?worker-count=4&{SECRET}=1", "mysql://h/?worker-count=4&…"),
        (f"mysql://h/?worker-count={SECRET}@4", "mysql://…"),
        (f"mysql://h/?worker-count={SECRET}%404", "mysql://h/?worker-count=xxxxx"),
        ("mysql://root:pa%20ss@h:4000/?ssl-key=/k", "mysql://xxxxx@h:4000/?ssl-key=xxxxx"),
        (
            f"s3://bucket/a?protocol=csv&secret-access-key={SECRET}",
            "s3://bucket/a?protocol=csv&secret-access-key=xxxxx",
        ),
        (f"s3://bucket/a?endpoint=http://u:{SECRET}@h:9000", "s3://bucket/a?endpoint=xxxxx"),
        ("s3://bucket/a?endpoint=http://h:9000", "s3://bucket/a?endpoint=http://h:9000"),
        (f"iceberg:///wh?catalog=postgresql://u:{SECRET}@h/db", "iceberg:///wh?catalog=xxxxx"),
        (
            f"iceberg+s3://b/wh?catalog=http://h?token={SECRET}&file-size=4096",
            "iceberg+s3://b/wh?catalog=xxxxx&file-size=4096",
        ),
        (f"s3://bucket/a&secret-access-key={SECRET}", "s3://…"),
        (f"delta+s3://bucket/a;protocol=x;secret-access-key={SECRET}", "delta+s3://…"),
        (f"iceberg:///wh&catalog=http://u:{SECRET}@h?file-size=4096", "iceberg://…"),
        (f"s3://bucket/a?protocol=csv;secret-access-key={SECRET}", "s3://bucket/a?protocol=xxxxx"),
        ("file:///data/key=5&b?protocol=csv&delimiter=;", "file:///data/key=5&b?protocol=csv&delimiter=;"),
        (f"kafka://u:{SECRET}@h:9092/t", "kafka://…"),
        (f"nonsense:{SECRET}", "(not a URI)"),
        (f"root:{SECRET}@h:3306", "(not a URI)"),
        (f"{SECRET}@x://h", "(not a URI)"),
    ],
)
def test_what_is_shown_holds_no_secret(uri: str, shown: str) -> None:
    assert safe_uri(uri) == shown
    assert SECRET not in safe_uri(uri)


@pytest.mark.parametrize("password", ["a/{}", "a?{}", "a#{}", "1/{}", "1?{}", "{}/", "{}?", "/{}", "[{}", "{}]"])
def test_a_password_that_is_not_encoded_is_refused_without_showing_it(password: str) -> None:
    with pytest.raises(SinkUriError, match="percent") as refused:
        read_sink_uri(f"mysql://root:{password.format(SECRET)}@127.0.0.1:3306/?worker-count=4")
    assert SECRET not in str(refused.value)
    assert SECRET not in str(refused.value.__cause__)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        (f"s3://bucket/a&protocol=csv&secret-access-key={SECRET}", "They begin with a '\\?'"),
        (f"s3://bucket&access-key=k&secret-access-key={SECRET}", "They begin with a '\\?'"),
        (f"kafka://b:9092/t&sasl-password={SECRET}?protocol=open-protocol", "They begin with a '\\?'"),
        (f"s3://bucket/a?protocol=csv;access-key=k;secret-access-key={SECRET}", "a ';' between them"),
        (f"s3://bucket/a?protocol=csv&endpoint=http://k:{SECRET}@h:9000", "'endpoint' must be a host"),
    ],
)
def test_parameters_that_are_not_where_they_belong_are_refused_without_showing_them(uri: str, says: str) -> None:
    with pytest.raises(SinkUriError, match=says) as refused:
        read_sink_uri(uri)
    assert SECRET not in str(refused.value)
    assert SECRET not in safe_uri(uri)


@pytest.mark.parametrize(
    "uri", ["file:///\udcff?protocol=csv", "s3://b/\udcff?protocol=csv", "iceberg:///w?catalog=sqlite:///\udcff"]
)
def test_bytes_that_are_no_text_are_refused(uri: str) -> None:
    for read in (read_sink_uri, place_of):
        with pytest.raises(SinkUriError, match="not UTF-8 text"):
            read(uri)


@pytest.mark.parametrize("uri", ["iceberg://[", "delta://[x", "file://[", "s3://[/", "mysql://["])
def test_a_host_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(SinkUriError):
        read_sink_uri(uri)


@pytest.mark.parametrize("port", ["0", "99999", "65536"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(SinkUriError, match="from 1 to 65535"):
        read_sink_uri(f"mysql://root@h:{port}/")


def test_every_known_parameter_is_either_shown_or_hidden_on_purpose() -> None:
    known = {p.name for p in known_parameters()} | set(MYSQL) | set(lake._READERS) | set(STORAGE)
    assert known - HIDDEN == SHOWN & known
    assert not SHOWN & HIDDEN


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mysql://root:a@h:3306/", "mysql://admin:b@H:3306/?worker-count=4&max-txn-row=1"),
        ("mysql://h/", "tidb+ssl://h:4000/?ssl-ca=/ca.pem"),
        ("file:///a/?protocol=csv", "file://localhost/a?protocol=CSV&flush-interval=5s&file-size=4096"),
        ("s3://b/p?protocol=csv&access-key=a&secret-access-key=b", "s3://b/p?protocol=csv"),
        ("iceberg:///wh?catalog=postgresql://u:a@h/db", "iceberg:///wh?catalog=postgresql://v:b@h/db&keep-snapshots=9"),
    ],
)
def test_what_does_not_say_where_the_sink_is_may_change(one: str, other: str) -> None:
    assert place_of(one) == place_of(other)
    assert not differences(place_of(one), place_of(other))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ("mysql://h:3306/", "mysql://h:3307/", "port: 3306, now 3307"),
        ("mysql://h/", "mysql://i/", "host: h, now i"),
        ("file:///a?protocol=csv", "file:///b?protocol=csv", "path: /a, now /b"),
        ("file:///a?protocol=csv", "file:///a?protocol=canal-json", "protocol: csv, now canal-json"),
        ("file:///a?protocol=csv", "blackhole://", "kind: file, now blackhole"),
        ("s3://a/p?protocol=csv", "s3://b/p?protocol=csv", "host: a, now b"),
        ("s3://a/?endpoint=http://h", "s3://a/?endpoint=http://i", "endpoint: http://h, now http://i"),
        ("iceberg:///w?catalog=sqlite:////a", "iceberg:///w?catalog=sqlite:////b", "catalog: sqlite:////a, now"),
        ("iceberg:///w", "iceberg:///w?namespace=n", "namespace: nothing, now n"),
    ],
)
def test_what_says_where_the_sink_is_makes_another_changefeed(one: str, other: str, said: str) -> None:
    assert said in differences(place_of(one), place_of(other))


def test_a_place_can_be_read_from_what_an_earlier_version_saved() -> None:
    was = "mysql://xxxxx@h:3306/?worker-count=4&ssl-ca=xxxxx"
    assert place_of(was) == place_of("mysql://root:a@h:3306/")


def test_a_place_holds_no_secret_and_is_its_own_place() -> None:
    for uri in (
        f"mysql://root:{SECRET}@h/?ssl-key={SECRET}",
        f"iceberg:///w?catalog=postgresql://u:{SECRET}@h/db?sslpassword={SECRET}",
        f"iceberg:///w?catalog=postgresql://u:a/{SECRET}@h/db",
        f"s3://b/p?endpoint=http://u:{SECRET}@h",
    ):
        assert SECRET not in place_of(uri)
        assert place_of(place_of(uri)) == place_of(uri)


def test_what_the_file_says_counts_as_if_the_uri_had_said_it() -> None:
    assert place_of("file:///a", {"protocol": "csv"}) == place_of("file:///a?protocol=csv")
    assert place_of("file:///a?protocol=csv", {"protocol": "canal-json"}) == place_of("file:///a?protocol=csv")


@pytest.mark.parametrize(
    ("place", "others", "found"),
    [
        ("mysql://127.0.0.1:3306/", (), ["127.0.0.1:3306"]),
        ("mysql://localhost:4000/", ("127.0.0.1:2379,10.0.0.1:2379",), ["localhost:4000", "127.0.0.1:2379"]),
        ("mysql://[::1]:3306/", ("https://localhost:2379",), ["[::1]:3306", "localhost:2379"]),
        ("s3://b/p?endpoint=http://127.0.1.1:9000", (), ["127.0.1.1:9000"]),
        ("iceberg+s3://b/p?catalog=http://127.0.0.1:80&endpoint=http://s3:80", (), []),  # only the driver asks it
        ("mysql://db.localhost.example:3306/", ("10.127.0.0.1:1", "127.example.com:1"), []),
        ("file:///data/127.0.0.1/localhost", (), []),
        ("blackhole://", ("",), []),
    ],
)
def test_addresses_that_lead_each_machine_to_itself(place: str, others: tuple[str, ...], found: list[str]) -> None:
    assert list(loopbacks(place, *others)) == found
