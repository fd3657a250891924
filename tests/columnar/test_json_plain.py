"""JSON's own escapes and no others, beside the plainest way to write them."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar.json_plain import escaped

VALUES = (
    st.none()
    | st.binary(max_size=24)
    | st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.text(alphabet='"\\\b\n\t<>&/\x7f\u2028é🐬a', max_size=20).map(str.encode)
)
SHORT = dict(zip('\t\n\r"\\', 'tnr"\\', strict=True))


def one(char: str) -> str:
    if char in SHORT:
        return "\\" + SHORT[char]
    if 0xD800 <= ord(char) < 0xE000:
        return "\\ufffd"
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 else char


def plain(data: bytes | None) -> str | None:
    """A byte that is no UTF-8 comes as one surrogate."""
    return None if data is None else "".join(map(one, data.decode("utf-8", "surrogateescape")))


@given(st.lists(VALUES), st.integers(0, 5))
def test_every_value_is_written_with_no_more_escapes_than_json_wants(values: list[bytes | None], begin: int) -> None:
    column = pa.array(values, pa.binary()).slice(begin)
    column = pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count, column.offset)
    found = escaped(column)
    found.validate(full=True)
    assert found.to_pylist() == [plain(value) for value in values[begin:]]


@given(st.text(max_size=30))
def test_any_text_is_read_back(text: str) -> None:
    (found,) = escaped(pa.array([text])).to_pylist()
    assert json.loads(f'"{found}"') == text


def test_a_column_that_needs_nothing_is_not_copied() -> None:
    column = pa.array(["all plain", "and <b>long</b> enough for words", None])
    assert escaped(column) is column
