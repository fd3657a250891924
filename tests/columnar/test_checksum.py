"""What a checksum has to notice: any damage, wherever it lies."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar.checksum import checksums


def array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(data), dtype=np.uint8)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_every_changed_byte_is_noticed(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data) - 1))
    flipped = draw.draw(st.integers(1, 255))
    damaged = bytearray(data)
    damaged[at] ^= flipped
    assert checksums(array(data)) != checksums(array(bytes(damaged)))


@pytest.mark.parametrize("bit", [0, 7, 31, 32, 62, 63])
def test_two_flips_of_the_same_bit_in_any_two_words_are_noticed(bit: int) -> None:
    clean = np.arange(64, dtype=np.uint64)
    expected = checksums(clean.view(np.uint8))
    for other in range(1, 64):
        damaged = clean.copy()
        damaged[[0, other]] ^= np.uint64(1 << bit)
        assert checksums(damaged.view(np.uint8)) != expected


def test_words_that_changed_places_are_noticed() -> None:
    clean = np.random.default_rng(1).integers(0, 1 << 64, 512, dtype=np.uint64)
    expected = checksums(clean.view(np.uint8))
    for other in range(1, 512):
        damaged = clean.copy()
        damaged[[0, other]] = damaged[[other, 0]]
        assert checksums(damaged.view(np.uint8)) != expected


@given(st.binary(max_size=64))
def test_zeros_that_were_added_or_lost_are_noticed(data: bytes) -> None:
    sums = {int(checksums(array(data + bytes(more)))[0]) for more in range(1, 40)}
    assert len(sums) == 39


@given(st.binary(max_size=500), st.integers(1, 100))
def test_each_block_has_the_checksum_of_its_own_bytes(data: bytes, block_bytes: int) -> None:
    alone = [int(checksums(array(data[at : at + block_bytes]))[0]) for at in range(0, len(data), block_bytes)]
    assert checksums(array(data), block_bytes).tolist() == alone


def test_bytes_that_are_read_only_or_not_aligned_have_the_same() -> None:
    data = bytes(range(200))
    read_only = np.frombuffer(b"?" + data, dtype=np.uint8)[1:]
    assert checksums(read_only).tolist() == checksums(array(data)).tolist()
