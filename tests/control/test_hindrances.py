"""What holds a lane back, and since when."""

from dataclasses import replace
from typing import Any

import pytest

from tidemill.control.hindrances import STANDING_SECONDS, LaneFacts, Standing, judged
from tidemill.control.progress import SLOW_SECONDS
from tidemill.model.cluster import Cause
from tidemill.model.ts import Ts

LANE = LaneFacts("c1/0", Ts(50), Ts(50), table="table 'shop.t' (7)", region=3, region_ts=Ts(50), scanned=2, regions=2)


@pytest.mark.parametrize(
    ("change", "cause", "subject", "says"),
    [
        pytest.param(
            {"trouble": "nobody answers"}, Cause.SINK, "the sink of lane c1/0", "nobody answers", id="a sink away"
        ),
        pytest.param(
            {"batch_seconds": SLOW_SECONDS}, Cause.SINK, "a batch of lane c1/0", "slow with it", id="a slow batch"
        ),
        pytest.param(
            {"batch_seconds": SLOW_SECONDS, "is_full": True}, Cause.SINK, "a batch", "nothing more is read",
            id="a slow batch, and the disk quota is used up",
        ),
        pytest.param({"batch_seconds": 1.0}, None, "", "", id="a batch that is under way is no hindrance"),
        pytest.param({"frontier_ts": Ts(60)}, None, "", "", id="nor is what is resolved and about to be taken"),
        pytest.param({"region": 0}, Cause.REGION, "table 'shop.t' (7)", "no region of its keys", id="no region"),
        pytest.param({}, Cause.REGION, "region 3, table 'shop.t' (7)", "later resolved-ts", id="a silent region"),
        pytest.param({"scanned": 1}, Cause.REGION, "region 3", "1 of 2 regions have been read", id="a scan"),
        pytest.param({"locks": {3: Ts(44)}}, Cause.LOCK, "region 3", "start-ts 44", id="an open transaction"),
        pytest.param({"locks": {4: Ts(44)}}, Cause.REGION, "region 3", "resolved-ts", id="but of another region"),
    ],
)  # fmt: skip
def test_what_holds_a_lane_back(change: dict[str, Any], cause: Cause | None, subject: str, says: str) -> None:
    found = judged(replace(LANE, **change))
    if cause is None:
        assert found is None
        return
    assert found is not None
    assert (found[0], found[1].startswith(subject), says in found[2]) == (cause, True, True), found


def test_a_region_counts_when_it_has_stood_for_a_while() -> None:
    standing = Standing()
    assert standing.held([LANE], 100.0) == ()
    assert standing.held([LANE], 100.0 + STANDING_SECONDS - 1) == ()
    (held,) = standing.held([LANE], 100.0 + STANDING_SECONDS)
    assert (held.cause, held.ts, held.since) == (Cause.REGION, Ts(50), 100.0)


def test_one_that_moves_never_does() -> None:
    standing = Standing()
    for second in range(60):
        ts = Ts(50 + second // 3)
        assert standing.held([replace(LANE, at_ts=ts, frontier_ts=ts, region_ts=ts)], 100.0 + second) == ()


def test_a_sink_that_is_away_counts_at_once_and_the_one_furthest_behind_comes_first() -> None:
    ahead, behind = replace(LANE, lane="c1/1", at_ts=Ts(70), trouble="away"), replace(LANE, trouble="away too")
    standing = Standing()
    assert [each.ts for each in standing.held([ahead, behind], 100.0)] == [Ts(50), Ts(70)]
    assert [each.since for each in standing.held([behind, ahead], 130.0)] == [100.0, 100.0]


def test_a_slow_batch_is_told_of_since_it_began() -> None:
    (held,) = Standing().held([replace(LANE, batch_seconds=30.0)], 100.0)
    assert held.since == 70.0


def test_what_has_passed_is_forgotten() -> None:
    standing = Standing()
    standing.held([replace(LANE, trouble="away")], 100.0)
    assert standing.held([], 110.0) == ()
    (held,) = standing.held([replace(LANE, trouble="away")], 120.0)
    assert held.since == 120.0
