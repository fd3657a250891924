"""Where a transaction's time goes: the parts add up, whatever the order of what was noted."""

import pytest

from bench.latency import _summary, split
from bench.writer import Commit, _moments
from tidemill.capture.batches import BatchTrace
from tidemill.model.ts import Ts


def trace(ready: float, offered: float, pipeline: float = 0.01, to_ts: int = 20) -> BatchTrace:
    return BatchTrace(Ts(to_ts), ready, offered, 2.2, 2.5, 2.6, pipeline)


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        pytest.param(trace(1.5, 2.0), (0.5, 0.5, 0.2, 0.29, 0.01, 0.1), id="each point after the other"),
        pytest.param(trace(0.5, 2.0), (0.0, 1.0, 0.2, 0.29, 0.01, 0.1), id="the batch was ready before the commit"),
        pytest.param(trace(0.5, 0.9), (0.0, 0.0, 1.2, 0.29, 0.01, 0.1), id="and even asked for"),
        pytest.param(trace(1.5, 2.0, 0.7), (0.5, 0.5, 0.2, 0.0, 0.3, 0.1), id="two tasks worked at the same time"),
    ],
)
def test_the_parts_of_a_transaction(batch, parts):
    found = split(Commit(15, 1.0), batch)
    assert tuple(found.values()) == pytest.approx(parts)
    assert sum(found.values()) == pytest.approx(batch.durable_at - 1.0)


def test_a_transaction_belongs_to_the_first_batch_that_reaches_it():
    traces = [trace(1.5, 1.6, to_ts=10), trace(1.7, 1.9, to_ts=20), trace(1.8, 2.0, to_ts=30)]
    results = {r["name"]: r["value"] for r in _summary("x", [Commit(11, 1.0), Commit(20, 1.1)], traces)}
    assert results["x_part.resolved"] == pytest.approx(((1.7 - 1.0) + (1.7 - 1.1)) / 2)
    assert results["x_p99"] == pytest.approx(2.6 - 1.0)


def test_transactions_come_once_in_every_slice_of_the_time():
    moments = list(_moments(10, 3))
    assert [int(at * 3) for at in moments] == list(range(30))
    assert len({round(at * 3 % 1, 6) for at in moments}) == 30
