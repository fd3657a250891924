"""The benchmarks of the store run, small: what they measure is there and comes from the right processes."""

import pytest

from bench import store
from bench.__main__ import checked


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(store, "VERSIONS", 6_000)
    monkeypatch.setattr(store, "ROUNDS", 1)
    monkeypatch.setattr(store, "PUTS_PER_TURN", 5)
    monkeypatch.setattr(store, "TURNS", 2)


def test_a_scan_is_measured_against_the_same_bytes_from_a_list(small):
    [result] = [checked(result) for result in store.bench_scan()]
    assert result["name"] == "store.scan_events"
    assert result["ratio"] == pytest.approx(result["value"] / result["floor"], rel=0.01)


def test_puts_are_measured_with_a_change_stream_and_without(small):
    results = [checked(result) for result in store.bench_raw_put()]
    assert [result["name"] for result in results] == ["store.raw_put_with_capture", "store.raw_put_with_capture_p99"]
    for result in results:
        assert result["ratio"] == pytest.approx(result["floor"] / result["value"], rel=0.01)
