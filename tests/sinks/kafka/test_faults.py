"""Whatever is late, killed or refused: first appearances stay in order, and errors say what to do."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from urllib.parse import quote

import pytest

from tests.flow.encoder.samples import COMMIT_TS
from tests.kafka import PASSWORD, STRANGER, USER, Broker
from tests.open_topic import Log
from tests.sinks.kafka.feed import BY_KEY, HASTY, Feed, ids, inserts, log_of
from tidemill.errors import SinkError, SupersededError
from tidemill.model.row import RowBatch
from tidemill.model.ts import Ts
from tidemill.sinks import read_sink_uri
from tidemill.sinks.kafka.generations import NEWEST


def in_order(log: Log) -> bool:
    """Whether the first appearances in each partition ascend."""
    for part in log.partitions:
        found = ids(Log([part]))
        if found != sorted(found):
            return False
    return True


def test_a_late_writer_adds_copies_and_no_disorder(broker: Broker, topic: str) -> None:
    """One of another process, which nobody can tell that it is late: here it comes before the newer generation."""
    feed = Feed(broker.uri(topic), BY_KEY)
    late = feed.target(300)
    reached, goes_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[RowBatch]:
        for at, rows in enumerate(inserts(0, 300)):
            if at == 3:
                reached.set()
                assert goes_on.wait(60)
            yield rows

    worker = threading.Thread(target=lambda: late.write(slowly()))
    worker.start()
    assert reached.wait(60)
    feed.target(200, writer=feed.writer).write(inserts(0, 200))  # what came again ends elsewhere
    feed.owner.publish(Ts(COMMIT_TS + 199))
    goes_on.set()
    worker.join()
    feed.target(400).write(inserts(200, 400))
    log = log_of(broker, topic)
    log.check()
    assert sorted(ids(log)) == list(range(400))
    assert log.copies >= 200


def test_writers_that_send_the_same_at_the_same_time_keep_the_order(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&partition-num=2"), BY_KEY)
    targets = [feed.target(end) for end in (700, 1000, 900)]
    ends = (700, 1000, 900)
    works = [
        threading.Thread(target=lambda t=target, e=end: t.write(inserts(0, e)))  # type: ignore[misc]
        for target, end in zip(targets, ends, strict=True)
    ]
    for work in works:
        work.start()
    for work in works:
        work.join()
    log = log_of(broker, topic)
    assert in_order(log)
    assert sorted(ids(log)) == list(range(1000))
    assert log.copies == 1600


def test_a_generation_that_has_ended_is_refused_where_that_is_known(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic))
    late = feed.target()
    NEWEST.meet(feed.another("main").target(*_unit()).generation)
    with pytest.raises(SupersededError, match="a newer generation of writer 'main' is at work"):
        late.write(inserts(0, 10))
    assert ids(log_of(broker, topic)) == []


def _unit() -> tuple[object, ...]:
    from tests.sinks.kafka.feed import ITEM

    return ITEM, ITEM.id, (Ts(COMMIT_TS), Ts(COMMIT_TS + 1))


def again_and_again(feed: Feed, first: int, end: int) -> None:
    """As a changefeed does, while what is wrong may pass."""
    deadline = time.monotonic() + 60
    while True:
        try:
            feed.writer = feed.another("main")
            return feed.batch(first, end)
        except SinkError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise


def test_a_broker_that_is_killed_in_the_middle_of_a_batch(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, f"protocol=open-protocol&{HASTY}"), BY_KEY)
    feed.batch(0, 100)

    def killed_meanwhile() -> Iterator[RowBatch]:
        yield from inserts(100, 1000)
        broker.kill()
        yield from inserts(1000, 2000)

    with pytest.raises(SinkError, match="cannot send messages to topic") as raised:
        feed.target().write(killed_meanwhile())
    assert raised.value.retryable
    broker.start()
    again_and_again(feed, 100, 1500)
    feed.batch(1500, 2100)
    log = log_of(broker, topic)
    log.check()
    assert in_order(log)
    assert sorted(ids(log)) == list(range(2100))


def test_a_broker_that_comes_back_in_time_goes_unnoticed(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, "protocol=open-protocol&write-timeout=90s"), BY_KEY)

    def restarted_meanwhile() -> Iterator[RowBatch]:
        yield from inserts(0, 500)
        broker.kill()
        broker.start()

    feed.target().write(chain(restarted_meanwhile(), inserts(500, 1000)))
    log = log_of(broker, topic)
    assert in_order(log)
    assert (sorted(ids(log)), log.copies) == (list(range(1000)), 0)


def test_a_broker_that_says_nothing_is_given_up(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, f"protocol=open-protocol&{HASTY}"), BY_KEY)
    feed.batch(0, 100)
    with broker.paused():
        for act in (lambda: feed.target().write(inserts(100, 300)), lambda: feed.owner.publish(Ts(COMMIT_TS + 120))):
            with pytest.raises(SinkError) as raised:
                act()
            assert raised.value.retryable
        assert not feed.options.answers(0.5)
    assert feed.options.answers(20)
    feed.batch(100, 400)
    log = log_of(broker, topic)
    log.check()
    assert sorted(ids(log)) == list(range(400))


def uris(broker: Broker) -> dict[str, tuple[str, str, bool]]:
    """How somebody may fail to come in: the URI, what is said, whether it passes."""
    login = "sasl-user={}&sasl-password={}".format
    quoted = PASSWORD.replace("/", "%2F").replace("?", "%3F").replace("&", "%26")
    sasl, tls = f"kafka://127.0.0.1:{broker.sasl_port}", f"kafka+ssl://127.0.0.1:{broker.tls_port}"
    return {
        "nobody there": ("kafka://127.0.0.1:1", "Check that the brokers are up and reachable", True),
        "no such host": ("kafka://no-such-host.invalid:9092", "Check that the brokers are up and reachable", True),
        "a wrong password": (f"{sasl}?{login(USER, 'hush')}", "Check sasl-user, sasl-password", False),
        "no rights": (f"{sasl}?{login(STRANGER, quoted)}", "Grant the user|not there", False),
        "another's certificate": (f"{tls}?", "TLS failed", False),
    }


@pytest.mark.parametrize(
    "how", ["nobody there", "no such host", "a wrong password", "no rights", "another's certificate"]
)
def test_whoever_is_not_let_in_is_told_why(broker: Broker, topic: str, how: str) -> None:
    uri, said, is_retryable = uris(broker)[how]
    address, _, query = uri.partition("?")
    with pytest.raises(SinkError, match=said) as raised:
        Feed(f"{address}/{topic}?protocol=open-protocol&{HASTY}&{query}".rstrip("&"))
    assert raised.value.retryable == is_retryable
    assert "hush" not in str(raised.value)
    assert PASSWORD not in str(raised.value)


def ways_in(broker: Broker) -> dict[str, Callable[[str], str]]:
    quoted = PASSWORD.replace("/", "%2F").replace("?", "%3F").replace("&", "%26")
    login = f"protocol=open-protocol&sasl-user={USER}&sasl-password={quoted}"
    ca = broker.authority.ca_path
    cert, key = broker.authority.issue("client")
    return {
        "plain": lambda t: f"kafka://127.0.0.1:{broker.sasl_port}/{t}?{login}",
        "scram-sha-256": lambda t: f"kafka://127.0.0.1:{broker.sasl_port}/{t}?{login}&sasl-mechanism=scram-sha-256",
        "scram-sha-512, TLS": lambda t: (
            f"kafka://127.0.0.1:{broker.sasl_tls_port}/{t}?{login}&sasl-mechanism=scram-sha-512&ca={ca}"
        ),
        "both certificates": lambda t: (
            f"kafka+ssl://127.0.0.1:{broker.tls_port}/{t}?protocol=open-protocol&ca={ca}&cert={cert}&key={key}"
        ),
        "unverified": lambda t: (
            f"kafka://127.0.0.1:{broker.sasl_tls_port}/{t}?{login}&enable-tls=true&insecure-skip-verify=true"
        ),
    }


@pytest.mark.parametrize("way", ["plain", "scram-sha-256", "scram-sha-512, TLS", "both certificates", "unverified"])
def test_the_ways_in(broker: Broker, topic: str, way: str) -> None:
    feed = Feed(ways_in(broker)[way](topic))
    feed.batch(0, 20)
    assert ids(log_of(broker, topic)) == list(range(20))


def _token(user: str) -> str:
    """One that nobody has signed, as the broker of tests takes it."""
    now = int(time.time())
    parts = {"alg": "none"}, {"sub": user, "iat": now, "exp": now + 3600}
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


class _Tokens(BaseHTTPRequestHandler):
    """A server of tokens, for clients that know the secret."""

    def do_POST(self) -> None:
        wanted = "Basic " + base64.b64encode(b"mill:s3cret/?&").decode()
        is_known = self.headers.get("Authorization") == wanted
        content = {"access_token": _token(USER), "token_type": "Bearer", "expires_in": 3600}
        body = json.dumps(content if is_known else {"error": "invalid_client"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to standard error."""


@pytest.fixture
def token_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Tokens)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    server.server_close()
    thread.join()


def _with_token(broker: Broker, topic: str, url: str, secret: str) -> str:
    quoted = quote(base64.b64encode(secret.encode()), safe="")
    asked = f"sasl-mechanism=oauthbearer&sasl-oauth-token-url={quote(url, safe='')}&sasl-oauth-client-id={USER}"
    asked += f"&sasl-oauth-client-secret={quoted}"
    return f"kafka://127.0.0.1:{broker.sasl_port}/{topic}?protocol=open-protocol&{HASTY}&{asked}"


def test_a_way_in_with_a_token(broker: Broker, topic: str, token_url: str) -> None:
    feed = Feed(_with_token(broker, topic, token_url, PASSWORD))
    feed.batch(0, 20)
    assert ids(log_of(broker, topic)) == list(range(20))


def test_whoever_gets_no_token_is_told_so(broker: Broker, topic: str, token_url: str) -> None:
    with pytest.raises(SinkError, match=r"the login failed.*Check sasl-oauth-token-url") as raised:
        Feed(_with_token(broker, topic, token_url, "hush"))
    assert "hush" not in str(raised.value)


def test_a_right_that_is_missing_when_rows_come_stops_the_changefeed(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    broker.allow(STRANGER, topic, "DESCRIBE", "DESCRIBE_CONFIGS")
    uri = f"kafka://127.0.0.1:{broker.sasl_port}/{topic}?protocol=open-protocol&{HASTY}"
    feed = Feed(f"{uri}&sasl-user={STRANGER}&sasl-password={quote(PASSWORD, safe='')}")
    with pytest.raises(SinkError, match="Grant the user") as raised:
        feed.batch(0, 10)
    assert not raised.value.retryable
    broker.allow(STRANGER, topic, "WRITE")
    feed = Feed(f"{uri}&sasl-user={STRANGER}&sasl-password={quote(PASSWORD, safe='')}")
    feed.batch(0, 10)
    assert ids(log_of(broker, topic)) == list(range(10))


def test_a_topic_that_is_deleted_meanwhile_stops_the_changefeed(broker: Broker, topic: str) -> None:
    feed = Feed(broker.uri(topic, f"protocol=open-protocol&{HASTY}"), BY_KEY)
    feed.batch(0, 100)
    broker.delete(topic)
    with pytest.raises(SinkError, match="cannot send messages to topic"):
        feed.target().write(inserts(100, 200))
    assert topic not in broker.topics()
    feed.writer = feed.another("main")
    with pytest.raises(SinkError, match="is not there any more, though rows have been sent to it") as raised:
        feed.batch(100, 200)
    assert not raised.value.retryable


def test_a_file_that_is_missing_is_named() -> None:
    uri = "kafka+ssl://127.0.0.1:1/t?protocol=open-protocol&ca=/no/such.pem"
    with pytest.raises(SinkError, match="Check the parameters of the sink URI, and the files ca, cert and key"):
        read_sink_uri(uri).open_owner(None)
