from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.span import KEY_END
from tidemill.tidb.keys import encode_bytes
from tidemill.upstream.feed.bounds import plain_bound

keys = st.binary(max_size=20)
near = st.one_of(keys, st.lists(st.sampled_from([0, 1, 0xF7, 0xF8, 0xFE, 0xFF]), max_size=20).map(bytes))


@given(near)
def test_the_bound_of_an_encoded_key_is_the_key(key):
    assert plain_bound(encode_bytes(key)) == key


@given(near, near)
def test_any_bytes_cut_plain_keys_where_they_cut_encoded_ones(bound, key):
    plain = plain_bound(bound)
    assert plain is not None
    assert (key >= plain) == (encode_bytes(key) >= bound)


def test_nothing_lies_above_the_end():
    assert plain_bound(KEY_END) is None
    assert plain_bound(b"") == b""
