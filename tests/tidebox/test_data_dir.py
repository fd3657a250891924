"""Data folders that cannot be what they should be: damaged, half made, of another cluster, not ours at all."""

import shutil
from pathlib import Path

import pytest

from tests.tidebox.stub import put
from tidebox.engine import Engine, Family
from tidebox.upstream import EmbeddedUpstream
from tidemill.errors import CorruptDataError, DataDirError


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of a cluster of three stores with some data."""
    made = tmp_path / "d"
    with EmbeddedUpstream.start(data_dir=made, stores=3) as upstream:
        upstream.commit([put(b"k%04d" % at, b"v" * 50) for at in range(2000)])
        upstream.split(b"k1000")
    return made


def flip(path: Path, fraction: float, count: int = 32) -> None:
    data = bytearray(path.read_bytes())
    at = int(len(data) * fraction)
    data[at : at + count] = bytes(byte ^ 0x5A for byte in data[at : at + count])
    path.write_bytes(data)


def flip_every(folder: Path, pattern: str, fraction: float) -> None:
    for path in folder.glob(pattern):
        flip(path, fraction)


def change_meta(folder: Path, change) -> None:
    engine = Engine(folder)
    batch = engine.batch()
    change(engine, batch)
    engine.write(batch)
    engine.close()


def drop_regions(engine, batch):
    for key, _ in engine.items(Family.META, b"region/", b"region0"):
        batch.delete(Family.META, key)


def drop_one_region(engine, batch):
    batch.delete(Family.META, next(iter(engine.items(Family.META, b"region/", b"region0")))[0])


def garble_regions(engine, batch):
    for key, _ in engine.items(Family.META, b"region/", b"region0"):
        batch.put(Family.META, key, b"\xff\xff\xff")


def forget_the_cluster(engine, batch):
    batch.delete(Family.META, b"cluster_id")


def forget_the_ids(engine, batch):
    batch.delete(Family.META, b"next_id")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda f: flip_every(f, "MANIFEST*", 0.3), id="a garbled manifest"),
        pytest.param(lambda f: flip_every(f, "MANIFEST*", 0.5), id="a manifest that seems to end halfway"),
        pytest.param(lambda f: (f / "CURRENT").write_bytes(b"nonsense"), id="a garbled CURRENT"),
        pytest.param(lambda f: (f / "CURRENT").unlink(), id="a folder without its beginning"),
        pytest.param(lambda f: [p.unlink() for p in f.glob("*.sst")], id="tables that are gone"),
        pytest.param(lambda f: [p.write_bytes(p.read_bytes()[:100]) for p in f.glob("*.sst")], id="tables cut short"),
        pytest.param(lambda f: flip_every(f, "*.sst", 0.0), id="tables garbled where they begin"),
        pytest.param(lambda f: change_meta(f, drop_regions), id="no regions"),
        pytest.param(lambda f: change_meta(f, drop_one_region), id="a hole between regions"),
        pytest.param(lambda f: change_meta(f, garble_regions), id="unreadable regions"),
        pytest.param(lambda f: change_meta(f, forget_the_cluster), id="data of no cluster"),
        pytest.param(lambda f: change_meta(f, forget_the_ids), id="ids that would be given out twice"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder, harm):
    harm(folder)
    with pytest.raises(DataDirError, match=str(folder)):
        EmbeddedUpstream.start(data_dir=folder, stores=3)


def test_a_damaged_log_is_refused_and_not_cut_where_the_damage_is(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as upstream:
        for at in range(200):
            upstream.commit([put(b"k%04d" % at)])
        shutil.copytree(tmp_path / "d", tmp_path / "copy")  # as kill -9 would leave it
    [log] = (tmp_path / "copy").glob("*.log")
    flip(log, 0.5)
    with pytest.raises(DataDirError, match="copy"):
        EmbeddedUpstream.start(data_dir=tmp_path / "copy")


def test_a_log_whose_last_record_is_cut_short_opens_without_it(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d") as upstream:
        for at in range(20):
            upstream.commit([put(b"k%04d" % at)])
        shutil.copytree(tmp_path / "d", tmp_path / "copy")
    [log] = (tmp_path / "copy").glob("*.log")
    log.write_bytes(log.read_bytes()[:-5])
    with EmbeddedUpstream.start(data_dir=tmp_path / "copy") as again:
        assert again.get(b"k0000") == b"v"


@pytest.mark.parametrize("fraction", [0.3, 0.6])
def test_a_scan_that_meets_damage_says_so_instead_of_ending(tmp_path, fraction):
    engine = Engine(tmp_path / "d")
    keys = [b"k%06d" % at for at in range(20_000)]
    engine.ingest(Family.WRITE, keys, [key * 4 for key in keys])
    engine.close()
    flip_every(tmp_path / "d", "*.sst", fraction)
    engine = Engine(tmp_path / "d")
    try:
        snapshot = engine.snapshot()
        for read in (engine.items, snapshot.items, snapshot.scan, engine.items_backwards):
            with pytest.raises(CorruptDataError, match="cannot be read"):
                list(read(Family.WRITE, b"", b""))
        with pytest.raises(CorruptDataError, match="cannot be read"):
            [engine.get(Family.WRITE, key) for key in keys]
        with pytest.raises(CorruptDataError, match="cannot be read"):
            [snapshot.get(Family.WRITE, key) for key in keys]
        del snapshot
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stores": 2}, "made for 3 stores, not 2. Start with --stores 3"),
        ({"stores": 3, "api_version": 2}, "API version 1, not 2.*Start with --api-version 1"),
    ],
)
def test_a_folder_of_another_kind_of_cluster_is_refused(folder, options, said):
    with pytest.raises(DataDirError, match=said):
        EmbeddedUpstream.start(data_dir=folder, **options)


def test_a_folder_with_other_peoples_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataDirError, match=r"holds other files, such as thesis\.txt"):
        EmbeddedUpstream.start(data_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "d").write_text("not a folder")
    with pytest.raises(DataDirError, match="cannot open"):
        EmbeddedUpstream.start(data_dir=tmp_path / "d")


def test_a_folder_in_use_is_refused(tmp_path):
    with EmbeddedUpstream.start(data_dir=tmp_path / "d"), pytest.raises(DataDirError, match="another process"):
        EmbeddedUpstream.start(data_dir=tmp_path / "d")


def test_a_folder_that_was_left_before_its_first_write_is_begun_anew(tmp_path):
    for name in ("LOCK", "LOG", "IDENTITY", "MANIFEST-000001", "000001.dbtmp"):
        (tmp_path / name).write_bytes(b"")
    with EmbeddedUpstream.start(data_dir=tmp_path) as upstream:
        upstream.commit([put(b"a")])
        assert upstream.get(b"a") == b"v"
