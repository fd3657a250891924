"""Objects of a bucket: fenced by generations, in bounded memory, through outages. Over HTTP, against a real server."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, SSLError

from tests.sinks.files.storage.buckets import Bucket, bucket
from tests.sinks.halves import FileHalves, file_sink
from tests.sinks.moments import START
from tidemill.errors import SinkError, SupersededError
from tidemill.sinks import read_sink_uri
from tidemill.sinks.files import SinkConfig
from tidemill.sinks.files import s3 as client_of
from tidemill.sinks.files.generation import Identity, Terms, WriterGenerations
from tidemill.sinks.files.objects import PART_BYTES, ObjectFiles
from tidemill.sinks.files.storage import parse_storage

MIB = 1 << 20


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket() as made:
        yield made


@pytest.fixture
def place(s3: Bucket, request: pytest.FixtureRequest) -> str:
    return f"s3://lake/{request.node.name}?{s3.parameters}"


def files_of(place: str) -> ObjectFiles:
    return ObjectFiles(parse_storage(place))


class Stepped:
    """A client that lets something happen before its n-th request, as if the process had been stopped there."""

    def __init__(self, client: Any, step: int, event: Callable[[], None]) -> None:
        self._client, self._left, self._event = client, step, event
        self.has_happened = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        def request(*words: Any, **given: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.has_happened = True
                self._event()
            return found(*words, **given)

        return request


def at_each_step(
    place: str, act: Callable[[ObjectFiles, str], Any], event: Callable[[], None]
) -> Iterator[tuple[int, bool]]:
    """Let ``act`` run, in a generation of its own, with ``event`` before its first request, then its second, and so
    on: (step, has it failed?)."""
    for step in range(1, 100):
        late = files_of(place)
        late.begin_generation(f"w/old-{step}")
        late._bucket.__dict__["client"] = stepped = Stepped(late._bucket.client, step, event)
        has_failed = False
        try:
            act(late, f"w/old-{step}")
        except SupersededError:
            has_failed = True
        if not stepped.has_happened:
            return
        yield step, has_failed


def uploads(place: str) -> list[Any]:
    options = parse_storage(place)
    prefix = options.root.partition("/")[2]
    found = client_of.open_client(options).list_multipart_uploads(Bucket="lake").get("Uploads", [])
    return [upload for upload in found if upload["Key"].startswith(prefix)]


def test_a_late_writer_has_no_effect_at_whichever_step_it_was_stopped(place: str) -> None:
    def take_over() -> None:
        driver = files_of(place)
        driver.begin_generation("w/new")
        driver.publish_file("w/new", "t/CDC1.json", [b"new"])

    outcomes = {}
    for step, has_failed in at_each_step(
        place, lambda late, mine: late.publish_file(mine, "t/CDC1.json", [b"late"]), take_over
    ):
        outcomes[step] = has_failed
        assert files_of(place).read("t/CDC1.json") == b"new", step
        assert files_of(place).names(".tidemill/w/uploads") == []
        assert uploads(place) == []
        files_of(place).remove("w/new", "t/CDC1.json")
    # All requests up to the completion fail; the last removes the note of an upload that was completed in time.
    assert outcomes == {**dict.fromkeys(range(1, len(outcomes)), True), len(outcomes): False}
    assert len(outcomes) >= 6


def test_a_late_driver_replaces_nothing_of_its_successor(place: str) -> None:
    steps = 0

    def take_over() -> None:
        driver = files_of(place)
        driver.begin_generation("w/new")
        driver.replace("w/new", "metadata", b"new %d" % steps)

    for step, has_failed in at_each_step(place, lambda late, mine: late.replace(mine, "metadata", b"late"), take_over):
        assert files_of(place).read("metadata") == b"new %d" % steps, step
        assert has_failed
        steps += 1
    assert steps >= 3


def test_a_late_driver_cannot_take_the_place_back(place: str) -> None:
    def take_over() -> None:
        files_of(place).begin_generation("w/new")

    for step, _ in at_each_step(place, lambda late, mine: late.begin_generation("w/old-again", [mine]), take_over):
        assert files_of(place).read(".tidemill/w/mark") == b"new", step


def test_a_late_driver_removes_nothing(place: str) -> None:
    late = files_of(place)
    late.begin_generation("w/old")
    late.replace("w/old", "x", b"-")
    files_of(place).begin_generation("w/new")
    with pytest.raises(SupersededError, match="another process, writes there now"):
        late.remove("w/old", "x")
    assert late.read("x") == b"-"


def test_a_writer_whose_mark_was_written_without_an_answer_is_not_superseded_by_itself(place: str) -> None:
    """The bucket goes away while a generation begins, and is back for the next attempt."""
    files = files_of(place)
    client = files._bucket.client
    Terms(files, Identity()).begin()
    writer = WriterGenerations(files, Identity(), "a")
    writer.begin()

    class Losing:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def put_object(self, **given: Any) -> None:
            client.put_object(**given)
            raise EndpointConnectionError(endpoint_url="http://x")

    before = writer.generation
    files._bucket.__dict__["client"] = Losing()
    with pytest.raises(SinkError, match="nobody answers"):
        writer.begin()
    assert not files_of(place).is_current(before)
    files._bucket.__dict__["client"] = client
    writer.begin()
    files.replace(writer.generation, "x", b"-")
    files_of(place).begin_generation("writer-a/another")
    for late in (lambda: files.replace(writer.generation, "x", b"late"), writer.begin, writer.check):
        with pytest.raises(SupersededError):
            late()


def test_a_task_of_an_earlier_generation_of_the_same_driver_stops(place: str) -> None:
    driver = files_of(place)
    driver.begin_generation("w/1")
    driver.begin_generation("w/2")
    driver.begin_generation("w/2")
    with pytest.raises(SupersededError):
        files_of(place).publish_file("w/1", "x", [b"-"])
    assert files_of(place).publish_file("w/2", "x", [b"two", memoryview(b"parts")]) == 8
    assert files_of(place).read("x") == b"twoparts"


def test_a_later_attempt_of_the_same_task_replaces_the_first(place: str) -> None:
    files_of(place).begin_generation("w/1")
    for content in (b"first", b"second"):
        files_of(place).publish_file("w/1", "x", [content])
    assert files_of(place).read("x") == b"second"


def test_what_an_earlier_version_left_is_ended(place: str) -> None:
    """Its only holder was the changefeed: mark and notes lay directly below."""
    files = files_of(place)
    upload = files._bucket.begin_upload(files._bucket.key("x"))
    note = orjson.dumps({"generation": "3f2a", "key": upload.key, "id": upload.id})
    for path, content in ((".tidemill/generation", b"3f2a"), (f".tidemill/uploads/{upload.token}", note)):
        files._bucket.put_if(files._bucket.key(path), content, None)
    terms = Terms(files, Identity())
    terms.begin()
    terms.fence(None)
    assert files.holders() == ["owner"]
    assert uploads(place) == []


def test_uploads_of_a_process_that_died_are_aborted_when_the_next_generation_begins(place: str) -> None:
    files_of(place).begin_generation("w/1")
    task = files_of(place)

    def die() -> None:
        task._bucket.__dict__["client"] = None  # it can do nothing more
        raise KeyboardInterrupt

    task._bucket.__dict__["client"] = Stepped(task._bucket.client, 5, die)
    with suppress(KeyboardInterrupt, SinkError):
        task.publish_file("w/1", "x", [bytes(PART_BYTES), b"-"])
    assert len(uploads(place)) == 1
    files_of(place).begin_generation("w/2")
    assert uploads(place) == []
    assert files_of(place).names(".tidemill/w/uploads") == []


def test_a_large_object_is_sent_in_parts_while_it_is_made(place: str) -> None:
    mib = 64
    options = parse_storage(place)
    client = client_of.open_client(options)
    files = files_of(place)
    files.begin_generation("w/1")
    most_held = made = 0

    def chunks() -> Iterator[bytes]:
        nonlocal most_held, made
        for _ in range(mib // 2):
            most_held = max(most_held, made - sent())
            made += 2 * MIB
            yield bytes(2 * MIB)

    def sent() -> int:
        found = uploads(place)
        if not found:
            return 0
        parts = client.list_parts(Bucket="lake", Key=found[0]["Key"], UploadId=found[0]["UploadId"])
        return sum(part["Size"] for part in parts.get("Parts", ()))

    size = files.publish_file("w/1", "x", chunks())
    assert size == mib * MIB
    assert most_held <= 2 * PART_BYTES
    assert client.head_object(Bucket="lake", Key=f"{options.root.partition('/')[2]}/x")["ContentLength"] == mib * MIB


def test_what_lies_within_another_changefeeds_prefix_is_left_alone_and_refused(place: str) -> None:
    def named_at(where: str, changefeed: str) -> SinkConfig:
        uri, _, parameters = place.partition("?")
        config = read_sink_uri(f"{uri}{where}?protocol=canal-json&{parameters}").named(changefeed, 7)
        assert isinstance(config, SinkConfig)
        return config

    def opened(where: str, changefeed: str) -> FileHalves:
        config = named_at(where, changefeed)
        return file_sink(config, None, storage=config.storage)

    inner = opened("/a/inner", "inner")
    inner.recover(START)
    files = inner.writer._files
    files.replace(inner.writer._generations.generation, "shop/t/1/CDC000001.json", b"1")  # no index tells of it yet
    opened("/a", "outer").recover(START)
    opened("/a-2", "second").recover(START)
    assert files.read("shop/t/1/CDC000001.json") == b"1"
    inner.recover(START)
    assert files.read("shop/t/1/CDC000001.json") is None
    says = r"/a/b lies within s3://lake/.*/a, which belongs to changefeed 'outer' of cluster 7"
    with pytest.raises(SinkError, match=says):
        opened("/a/b", "third")


def test_an_outage_is_told_from_a_refusal(place: str, s3: Bucket) -> None:
    files = files_of(place)
    files.begin_generation("w/1")
    with s3.stopped():
        for act in (
            lambda: files.publish_file("w/1", "x", [b"-"]),
            lambda: files.replace("w/1", "x", b"-"),
            lambda: files.begin_generation("w/2"),
            lambda: files.names(""),
        ):
            with pytest.raises(SinkError, match="nobody answers") as raised:
                act()
            assert raised.value.retryable
    files.begin_generation("w/2")
    assert files.publish_file("w/2", "x", [b"-"]) == 1


def refusal(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "is_retryable", "said"),
    [
        (refusal("SlowDown", 503), True, "the store answers SlowDown"),
        (refusal("InternalError", 500), True, "the store answers InternalError"),
        (refusal("RequestTimeout", 400), True, "the store answers RequestTimeout"),
        (refusal("503", 503), True, "the store answers 503"),
        (refusal("429", 429), True, "the store answers 429"),
        (ConnectTimeoutError(endpoint_url="http://x"), True, "nobody answers"),
        (EndpointConnectionError(endpoint_url="http://x"), True, "nobody answers"),
        (refusal("AccessDenied", 403), False, "access is denied"),
        (refusal("NoSuchBucket", 404), False, "there is no such bucket"),
        (refusal("SignatureDoesNotMatch", 403), False, "the secret does not fit"),
        (refusal("NotImplemented", 501), False, "must support conditional writes"),
        (SSLError(endpoint_url="http://x", error="hush"), False, "TLS failed"),
    ],
)
def test_what_a_store_answers_is_final_or_passes(error: Exception, is_retryable: bool, said: str) -> None:
    found = client_of.translate("write", "s3://b/x", error)
    assert found.retryable is is_retryable
    assert said in str(found)
    assert "hush" not in str(found)


def test_a_store_that_ignores_conditions_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(place)
    real = files._bucket.client

    class Careless:
        def __getattr__(self, name: str) -> Any:
            found = getattr(real, name)
            return lambda **given: found(**{k: v for k, v in given.items() if k != "IfNoneMatch"})

    files._bucket.__dict__["client"] = Careless()
    with pytest.raises(SinkError, match="Use a store that supports conditional writes"):
        files.check_access()


def test_a_role_is_assumed(place: str, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{s3.port}")
    files = files_of(f"{place}&role-arn=arn:aws:iam::123456789012:role/writer&external-id=outside")
    files.begin_generation("w/1")
    files.replace("w/1", "x", b"-")
    assert files.read("x") == b"-"
    assert files._bucket.client._request_signer._credentials.access_key != "tidemill"
