"""Go's escapes, beside the plainest way to write them."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemill.columnar.go_quoted import escaped

LETTERS = dict(zip('\a\b\f\n\r\t\v"\\', 'abfnrtv"\\', strict=True))
VALUES = (
    st.none() | st.binary(max_size=24) | st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass"))
)


def plain(data: bytes | None) -> str | None:
    """A character that is no UTF-8 comes as one surrogate per byte."""
    if data is None:
        return None
    return "".join(map(one, data.decode("utf-8", "surrogateescape")))


def one(char: str) -> str:
    code = ord(char)
    if char in LETTERS:
        return "\\" + LETTERS[char]
    if 0xDC80 <= code < 0xDD00 or code < 0x20 or code == 0x7F:
        return f"\\x{code & 0xFF:02x}"
    if char.isprintable():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@given(st.lists(VALUES), st.integers(0, 5))
def test_every_value_is_written_as_go_writes_it(values: list[bytes | None], begin: int) -> None:
    found = escaped(pa.array(values, pa.binary()).slice(begin))
    found.validate(full=True)
    assert found.to_pylist() == [plain(value) for value in values[begin:]]
