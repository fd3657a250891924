"""Timestamps without a server: reserves, the history's clock, and waiting for room."""

import threading
from dataclasses import dataclass

import pytest

from tidebox.engine import Engine
from tidebox.tso import Tso
from tidemill.errors import UpstreamUnavailableError, UsageError

START_MS = 1_700_000_000_000


@dataclass
class HandClock:
    seconds: float = START_MS / 1000

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds


@dataclass
class Standing:
    """A history that stands at one moment."""

    ms: int
    limit: int

    def now_ms(self):
        return self.ms


@pytest.fixture
def engine(tmp_path):
    engine = Engine(tmp_path / "d")
    yield engine
    engine.close()


def test_the_clock_gives_the_physical_part(engine):
    clock = HandClock()
    tso = Tso(engine, clock)
    assert tso.next() == START_MS << 18
    assert tso.next() == (START_MS << 18) + 1
    clock.seconds += 1
    assert tso.next() == (START_MS + 1000) << 18


def test_a_clock_that_goes_back_is_not_followed(engine):
    clock = HandClock()
    tso = Tso(engine, clock)
    last = tso.next()
    clock.seconds -= 10
    assert tso.next() == last + 1


def test_a_history_from_the_future_sets_the_clock_ahead(engine):
    clock = HandClock()
    tso = Tso(engine, clock)
    tso.pass_by((START_MS + 3_600_000) << 18)
    clock.seconds += 1
    assert tso.advance() == (START_MS + 3_601_000) << 18
    clock.seconds += 1
    assert Tso(engine, clock).advance() >= (START_MS + 3_601_000) << 18


def test_a_small_lead_is_waited_for(engine):
    clock = HandClock()
    tso = Tso(engine, clock)
    tso.pass_by((START_MS + 600) << 18)
    clock.seconds += 0.3
    assert tso.next() == ((START_MS + 600) << 18) + 1
    clock.seconds += 0.5
    assert tso.next() == (START_MS + 800) << 18


def test_after_a_crash_none_is_given_twice(engine):
    clock = HandClock()
    crashed = Tso(engine, clock)
    given = [crashed.next(100) for _ in range(50)]
    assert Tso(engine, clock).next() > given[-1]


def test_after_a_clean_stop_the_reserve_is_not_lost(engine):
    clock = HandClock()
    first = Tso(engine, clock)
    last = first.next()
    first.close()
    assert Tso(engine, clock).next() == last + 1


@pytest.mark.parametrize("count", [0, -1, (1 << 18) + 1])
def test_a_batch_must_fit_a_millisecond(engine, count):
    with pytest.raises(UsageError, match="at once"):
        Tso(engine, HandClock()).next(count)


def test_advancing_takes_nothing_away(engine):
    tso = Tso(engine, HandClock())
    present = tso.advance()
    assert tso.advance() == present
    assert tso.next() == present + 1


def test_no_timestamp_passes_the_next_commit_of_a_history(engine):
    tso = Tso(engine, HandClock())
    limit = (500 << 18) + 7
    tso.follow(Standing(500, limit))
    assert tso.next(7) == limit - 1
    assert tso.advance() == limit - 1


def test_a_history_ahead_of_its_pace_is_not_overtaken(engine):
    tso = Tso(engine, HandClock())
    tso.follow(Standing(900, (500 << 18) + 7))
    tso.pass_by(500 << 18)
    assert tso.next() == (500 << 18) + 1
    assert tso.advance() == (500 << 18) + 6


def test_who_finds_no_room_waits_until_the_commit_is_applied(engine):
    tso = Tso(engine, HandClock())
    history = Standing(500, (500 << 18) + 1)
    tso.follow(history)
    tso.pass_by(500 << 18)
    given = []
    waiter = threading.Thread(target=lambda: given.append(tso.next()))
    waiter.start()
    history.limit = (600 << 18) + 5
    tso.pass_by((500 << 18) + 1)
    waiter.join(30)
    assert given == [(500 << 18) + 2]


def test_after_a_history_the_machines_clock_goes_on(engine):
    tso = Tso(engine, HandClock())
    tso.follow(Standing(500, 501 << 18))
    tso.next()
    tso.follow(None)
    assert tso.next() == START_MS << 18


def test_a_crash_in_a_history_leaves_room_below_its_next_commit(engine):
    tso = Tso(engine, HandClock())
    tso.follow(Standing(500, (500 << 18) + 1000))
    given = tso.next()
    again = Tso(engine, HandClock())
    assert given <= again.last < (500 << 18) + 1000


def test_who_waits_at_the_end_is_told(engine):
    tso = Tso(engine, HandClock())
    tso.follow(Standing(500, 1))
    failed = []

    def wait():
        with pytest.raises(UpstreamUnavailableError):
            tso.next()
        failed.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    tso.close()
    waiter.join(30)
    assert failed == [True]
