"""Files in a folder and in a bucket: the same surface, the same promises."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.encoder.samples import ITEM
from tests.sinks.files.storage.buckets import Bucket, bucket
from tests.sinks.folders import config_for, messages, tree, write_batch
from tests.sinks.halves import file_sink
from tests.sinks.lake.replay import Replay
from tests.sinks.lake.test_crashes import whole
from tests.sinks.moments import START
from tidemill.errors import SinkError, SinkUriError, SupersededError
from tidemill.model.ts import Ts
from tidemill.sinks.files import write_files
from tidemill.sinks.files.storage import Files, StorageOptions, open_files, open_place, parse_storage
from tidemill.sinks.lake.reader import Lake

MINE = "writer-a/1"


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    with bucket() as made:
        yield made


@pytest.fixture(params=["file", "s3"])
def files(request: Any, tmp_path: Path, s3: Bucket) -> Files:
    uri = f"file://{tmp_path}/place" if request.param == "file" else f"s3://lake/{tmp_path.name}?{s3.parameters}"
    found = open_place(parse_storage(uri), is_new=True)
    found.begin_generation(MINE)
    return found


def test_what_was_written_is_there_whole(files: Files) -> None:
    files.make_folder("a/b")
    assert files.publish_file(MINE, "a/b/x", [b"one", memoryview(b"two")]) == 6
    assert files.read("a/b/x") == b"onetwo"
    files.replace(MINE, "a/b/x", b"three")
    assert files.read("a/b/x") == b"three"


def test_what_is_not_there_is_none(files: Files) -> None:
    assert files.read("nothing") is None
    assert files.names("nowhere") == []


def test_folders_are_listed_and_walked(files: Files) -> None:
    files.make_folder("a/b")
    for path in ("top", "a/x", "a/b/y"):
        files.replace(MINE, path, b"-")
    assert sorted(files.names("a")) == ["b", "x"]
    assert {folder: names for folder, names in files.walk() if names} == {".": ["top"], "a": ["x"], "a/b": ["y"]}
    assert {folder: names for folder, names in files.walk("a/b") if names} == {"a/b": ["y"]}
    assert list(files.walk("nowhere")) == []


def test_what_was_removed_is_gone_and_may_be_removed_again(files: Files) -> None:
    files.replace(MINE, "x", b"-")
    for _ in range(2):
        files.remove(MINE, "x")
        assert files.read("x") is None


def test_a_failure_while_making_the_bytes_leaves_nothing(files: Files) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"-"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.publish_file(MINE, "x", chunks())
    assert files.read("x") is None


# Generations


def publish(files: Files, generation: str, path: str = "x") -> None:
    files.publish_file(generation, path, [generation.encode()])


def test_a_generation_ends_those_of_its_own_holder_and_no_others(files: Files) -> None:
    files.begin_generation("writer-b/1")
    files.begin_generation("writer-a/2")
    for act in (
        lambda: publish(files, MINE),
        lambda: files.replace(MINE, "x", b"-"),
        lambda: files.remove(MINE, "x"),
    ):
        with pytest.raises(SupersededError):
            act()
    assert files.read("x") is None
    for generation in ("writer-a/2", "writer-b/1"):
        publish(files, generation)
        assert files.read("x") == generation.encode()
    assert [files.is_current(each) for each in (MINE, "writer-a/2", "writer-b/1")] == [False, True, True]


def test_generations_that_are_ended_are_gone_until_another_begins(files: Files) -> None:
    files.begin_generation("owner/1")
    files.begin_generation("writer-b/1")
    for _ in range(2):  # again does no harm
        files.end_generations("writer-a")
        assert sorted(files.holders()) == ["owner", "writer-b"]
        with pytest.raises(SupersededError):
            publish(files, MINE)
    publish(files, "writer-b/1")
    files.begin_generation("writer-a/2")
    publish(files, "writer-a/2")


def test_a_generation_that_follows_another_does_so_only_while_that_is_the_newest(files: Files) -> None:
    files.begin_generation("writer-a/2", [MINE])
    files.begin_generation("writer-a/3", ["writer-a/2", "writer-a/lost"])
    with pytest.raises(SupersededError):
        files.begin_generation("writer-a/4", ["writer-a/2"])
    files.end_generations("writer-a")
    with pytest.raises(SupersededError):
        files.begin_generation("writer-a/5", ["writer-a/3"])
    assert not any(files.is_current(f"writer-a/{number}") for number in range(1, 6))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("endpoint=ftp://x", "'endpoint' must be a host"),
        ("endpoint=http://[", "'endpoint' must be a host"),
        ("endpoint=http://h:99999", "'endpoint' must be a host"),
        ("region=eu&region=us", "'region' is given twice"),
        ("access-key=a", "go together"),
        ("force-path-style=maybe", "'force-path-style' must be true or false"),
        ("acl=public-read", "'acl' is not supported: objects get the bucket's default rights"),
        ("storage-class=GLACIER", "'storage-class' is not supported"),
        ("use-accelerate-endpoint=true", "'use-accelerate-endpoint' is not supported"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused_by_name(query: str, said: str) -> None:
    with pytest.raises(SinkUriError, match=said):
        parse_storage(f"s3://bucket/prefix?{query}")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket:9000/prefix", "'bucket:9000' is no name of a bucket"),
        ("s3://my bucket/prefix", "'my bucket' is no name of a bucket"),
        ("s3://me:secret@bucket/prefix", "'access-key' and 'secret-access-key'"),
        ("file:///", "names no folder"),
        ("file://host/folder", "where a host would stand"),
        ("file:///folder?endpoint=http://x", "'endpoint' is for s3:// only"),
    ],
)
def test_places_that_are_none_are_refused(uri: str, said: str) -> None:
    with pytest.raises(SinkUriError, match=said) as raised:
        parse_storage(uri)
    assert "secret@" not in str(raised.value)


def test_a_place_in_a_bucket_is_read_from_its_uri() -> None:
    found = parse_storage(
        "s3://bucket/a/b%20c?endpoint=minio:9000&region=eu&access-key=k&secret-access-key=s%2F1&session-token=t"
        "&force-path-style=false&role-arn=r&external-id=x&protocol=csv"
    )
    assert found == StorageOptions("bucket/a/b c", True, "https://minio:9000", "eu", "k", "s/1", "t", False, "r", "x")


def test_secrets_are_not_shown() -> None:
    found = parse_storage("s3://bucket/p?access-key=AKIA&secret-access-key=SECRET&session-token=TOKEN&external-id=EXT")
    assert not any(word in repr(found) + found.uri + found.shown for word in ("AKIA", "SECRET", "TOKEN", "EXT"))
    assert pickle.loads(pickle.dumps(found)).secret_access_key == "SECRET"


def test_credentials_may_come_from_the_environment(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tidemill")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    place = parse_storage(f"s3://lake/environment?endpoint=http://127.0.0.1:{s3.port}")
    files = open_place(place, is_new=True)
    files.begin_generation(MINE)
    files.replace(MINE, "x", b"-")
    assert open_files(place).read("x") == b"-"


def test_a_bucket_that_is_not_there_is_named(s3: Bucket) -> None:
    with pytest.raises(SinkError, match=r"cannot write s3://missing/p/\.probe\S+: there is no such bucket") as raised:
        open_place(parse_storage(f"s3://missing/p?{s3.parameters}"), is_new=True)
    assert "hush" not in str(raised.value)


# Sinks on both.


def run_files(root: Path, storage: StorageOptions | None, *, is_broken: bool) -> None:
    """Three batches of one table; with ``is_broken`` each is written once in vain."""
    state, config = None, config_for(root, "&file-index-digit=6&date-separator=none")
    for to_ts in (450000000000000000, 450000000000000100, 450000000000000200):
        if is_broken:
            lost = file_sink(config, state, storage=storage)
            lost.recover(START)
            write_files(lost.target(ITEM, 108, (Ts(0), Ts(to_ts))), iter([messages((to_ts, "in vain"), (to_ts, "!"))]))
        sink = file_sink(config, state, storage=storage)
        sink.recover(START)
        state = write_batch(sink, to_ts, messages((to_ts - 1, "a"), (to_ts, "b")))


@pytest.mark.parametrize("is_broken", [False, True], ids=["calm", "crashed"])
def test_the_file_sink_writes_the_same_into_a_bucket_as_into_a_folder(
    is_broken: bool, s3: Bucket, tmp_path: Path
) -> None:
    run_files(tmp_path / "local", None, is_broken=False)
    prefix = f"files-{is_broken}"
    run_files(tmp_path / "unused", parse_storage(f"s3://lake/{prefix}?{s3.parameters}"), is_broken=is_broken)
    found = {name: content.decode() for name, content in s3.content(prefix).items() if not name.startswith(".")}
    assert found == tree(tmp_path / "local")
    assert len(found) >= 5


@pytest.mark.parametrize("kind", ["iceberg", "delta", "parquet"])
def test_lakes_in_a_bucket_hold_what_they_hold_in_a_folder(kind: str, s3: Bucket, tmp_path: Path) -> None:
    scheme = "s3" if kind == "parquet" else f"{kind}+s3"
    more = {"iceberg": f"&catalog=sqlite:///{tmp_path}/catalog.db", "delta": "", "parquet": "&protocol=parquet"}[kind]
    uri = f"{scheme}://lake/{kind}?{s3.parameters}{more}"
    replay = Replay("types", kind, tmp_path, uri)
    tables = {"ints", "times", "p_hash"}
    for to_ts in replay.stops():
        for event in replay.events(to_ts):
            if event.table in tables:
                replay.sink.ddl(event)
    receipts = [r for r in replay.write(replay.history.end_ts, tables) if r.files]
    replay.commit(replay.history.end_ts, receipts)
    replay.sink.close()
    local = whole("types", kind, tmp_path / "local")
    local.commit(local.history.end_ts, local.write(local.history.end_ts, tables))
    for name in tables:
        found, expected = (Lake(r.options).rows_at("kinds", name) for r in (replay, local))
        assert found.sort_by("id") == expected.sort_by("id")
        assert len(found) > 0


def test_a_changefeed_without_rows_yet_continues_behind_the_checkpoint_that_it_has_published(tmp_path: Path) -> None:
    """It has no state of its sink, and was killed after it had saved its checkpoint and before it published it."""
    config = replace(config_for(tmp_path / "out"), changefeed="feed", cluster_id="7")
    first = file_sink(config, None, start_ts=Ts(100))
    first.recover(START)
    first.publish(Ts(120))
    file_sink(config, None, start_ts=Ts(130), is_resumed=True).recover(START)
    with pytest.raises(SinkError, match="there twice"):
        file_sink(config, None, start_ts=Ts(110), is_resumed=True)
