"""Sink URIs of another TiKV."""

import pytest

from tidemill.config.sink_uri import differences, loopbacks, place_of, safe_uri
from tidemill.errors import SinkUriError
from tidemill.model.security import Security
from tidemill.sinks import read_sink_uri
from tidemill.sinks.tikv import TikvOptions
from tidemill.sinks.tikv.uri import known_parameters, parse_tikv_uri


def test_a_bare_uri_has_the_defaults() -> None:
    assert read_sink_uri("tikv://pd:2379") == TikvOptions("pd:2379")
    assert read_sink_uri("TIKV://pd/") == TikvOptions("pd:2379")


def test_parameters_are_read() -> None:
    uri = (
        "tikv://a:1,b?concurrency=9&batch-size=10&batch-bytes=2048&max-backoff=300ms&rate-limit=1000&deadline=1m"
        "&keyspace=other&ca-path=/ca&cert-path=/cert&key-path=/key"
    )
    assert parse_tikv_uri(uri) == TikvOptions(
        "a:1,b:2379", 9, 10, 2048, 0.3, 1000, 60.0, keyspace="other", security=Security("/ca", "/cert", "/key")
    )


@pytest.mark.parametrize("name", [name for name, each in known_parameters().items() if each.default])
def test_the_default_that_the_page_tells_is_the_default(name: str) -> None:
    told = parse_tikv_uri(f"tikv://pd:2379?{name}={known_parameters()[name].default}")
    assert told in (parse_tikv_uri("tikv://pd:2379"), parse_tikv_uri("tikv://pd:2379?keyspace=DEFAULT"))


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        pytest.param("tikv://", "names no PD", id="no host"),
        pytest.param("tikv:///", "names no PD", id="no host, a slash"),
        pytest.param("tikv://pd:2379/x", "has a path", id="a path"),
        pytest.param("tikv://pd:99999", "port 99999 of a PD", id="a port"),
        pytest.param("tikv://a..b:1,/", "names a PD that cannot be one", id="an empty host"),
        pytest.param("tikv://u:p@pd:2379", "no user or password before its PDs", id="a user"),
        pytest.param("tikv://pd?concurrency=0", "'concurrency' is '0'; it must be a whole number, 1", id="no tasks"),
        pytest.param(
            "tikv://pd?deadline=500ms", "'deadline' is '500ms'; it must be at least 1s", id="a hasty deadline"
        ),
        pytest.param("tikv://pd?keyspace=", "'keyspace' is ''; it must be the name", id="an empty keyspace"),
        pytest.param("tikv://pd?concurency=4", "Did you mean 'concurrency'", id="a typing error"),
        pytest.param("tikv://pd?protocol=csv", "unknown sink URI parameter 'protocol'", id="another sink's"),
        pytest.param("tikv://pd?deadline=2s&deadline=3s", "'deadline' is given twice", id="twice"),
        pytest.param("tikv://pd?cert-path=/c&key-path=/k", "TLS to the target needs 'ca-path'", id="no authority"),
        pytest.param("tikv://pd?ca-path=/a&key-path=/k", "either both or not at all", id="half a certificate"),
    ],
)
def test_what_cannot_be_is_refused(uri: str, says: str) -> None:
    with pytest.raises(SinkUriError, match=says):
        read_sink_uri(uri)


@pytest.mark.parametrize(
    ("uri", "shown", "place"),
    [
        pytest.param("tikv://pd", "tikv://pd", "tikv://pd:2379", id="a host"),
        pytest.param("tikv://a:1,b:2/", "tikv://a:1,b:2/", "tikv://a:1,b:2", id="several"),
        pytest.param(
            "tikv://pd:1?keyspace=x&ca-path=/ca&deadline=2s",
            "tikv://pd:1?keyspace=x&ca-path=xxxxx&deadline=2s",
            "tikv://pd:1?keyspace=x",
            id="files of keys are not shown, and only the keyspace is part of the place",
        ),
    ],
)
def test_what_of_it_is_shown_and_kept(uri: str, shown: str, place: str) -> None:
    assert (safe_uri(uri), place_of(uri)) == (shown, place)


def test_other_pds_may_be_those_of_the_same_cluster_and_another_keyspace_is_another_place() -> None:
    assert differences("tikv://a:1", "tikv://b:1,c:1") == ""
    assert differences("tikv://a:1", "tikv://a:1?keyspace=x") == "keyspace: nothing, now x"
    assert loopbacks("tikv://127.0.0.1:2379,pd:2379") == ("127.0.0.1:2379",)
