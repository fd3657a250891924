"""What is asked of the target for a step's rows: the last version of each key, with what is left of its time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flow.test_rawkv import changes, decoded
from tidemill.sinks.tikv.target import Writes, latest

NOW = 1_700_000_000


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([], Writes({}, {}, []), id="nothing"),
        pytest.param([(b"a", b"1", 0)], Writes({b"a": b"1"}, {}, []), id="a put that never ends"),
        pytest.param([(b"a", b"", 0)], Writes({b"a": b""}, {}, []), id="a put of an empty value is no delete"),
        pytest.param([(b"a", None, 0)], Writes({}, {}, [b"a"]), id="a delete"),
        pytest.param([(b"a", b"1", 0), (b"a", b"2", 0)], Writes({b"a": b"2"}, {}, []), id="the last put of a key"),
        pytest.param([(b"a", b"1", 0), (b"a", None, 0)], Writes({}, {}, [b"a"]), id="deleted after it was put"),
        pytest.param([(b"a", None, 0), (b"a", b"1", 0)], Writes({b"a": b"1"}, {}, []), id="put after it was deleted"),
        pytest.param(
            [(b"a", b"1", NOW + 7)], Writes({b"a": b"1"}, {b"a": 7}, []), id="what is left of the time to live"
        ),
        pytest.param([(b"a", b"1", NOW + 1)], Writes({b"a": b"1"}, {b"a": 1}, []), id="a last second"),
        pytest.param([(b"a", b"1", NOW)], Writes({}, {}, [b"a"]), id="expired just now: a delete"),
        pytest.param([(b"a", b"0", 0), (b"a", b"1", 5)], Writes({}, {}, [b"a"]), id="expired long ago, over an older"),
        pytest.param(
            [(b"a", b"1", 5), (b"a", b"2", 0)], Writes({b"a": b"2"}, {}, []), id="an older version that has expired"
        ),
        pytest.param(
            [(b"a", b"1", NOW + 9), (b"a", b"2", 0)], Writes({b"a": b"2"}, {}, []), id="the last put takes the end away"
        ),
        pytest.param(
            [(b"b", b"1", 0), (b"a", None, 0), (b"c", b"3", 5)],
            Writes({b"b": b"1"}, {}, [b"a", b"c"]),
            id="keys do not concern each other",
        ),
    ],
)
def test_what_a_step_asks_for(rows: list[tuple[bytes, bytes | None, int]], expected: Writes) -> None:
    assert latest(decoded(changes(*rows))).writes(NOW) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"ab", b"b"]),
            st.none() | st.binary(max_size=3),
            st.sampled_from([0, NOW - 1, NOW, NOW + 1, NOW + 50]),
        ),
        max_size=30,
    )
)
def test_it_leaves_what_one_write_after_the_other_would(rows: list[tuple[bytes, bytes | None, int]]) -> None:
    keys: dict[bytes, tuple[bytes, int]] = {}
    for key, value, expiry in rows:  # plainly right, and a request each
        keys.pop(key, None)
        if value is not None and not 0 < expiry <= NOW:
            keys[key] = value, expiry
    writes = latest(decoded(changes(*rows))).writes(NOW)
    found = {key: (value, writes.ttls[key] + NOW if key in writes.ttls else 0) for key, value in writes.puts.items()}
    assert found == keys
    assert set(writes.deletes) == {key for key, _, _ in rows} - keys.keys()
