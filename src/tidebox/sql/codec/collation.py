"""Sort keys: the bytes that stand in a key for a text, so that keys sort and compare as the collation says.

A sort key forgets (case, trailing spaces); ``needs_restoring`` says of which columns the text itself must be kept.
"""

from collections.abc import Callable
from typing import Final

from tidebox.sql.codec import weights
from tidemill.errors import UnsupportedCollationError
from tidemill.model.table import STRING_TYPES, ColumnInfo, ColumnType
from tidemill.tidb.collation import general_ci

# In these the sort key is the text itself, but for trailing spaces in the padding ones.
_PADDING_BINARY: Final = frozenset({"utf8mb4_bin", "utf8_bin", "ascii_bin", "latin1_bin"})
_PLAIN_BINARY: Final = frozenset({"binary", "utf8mb4_0900_bin"})
_UNICODE_CI: Final = frozenset({"utf8mb4_unicode_ci", "utf8_unicode_ci"})
_GENERAL_CI: Final = frozenset({"utf8mb4_general_ci", "utf8_general_ci"})

SortKey = Callable[[str | bytes], bytes]


def text_bytes(value: str | bytes) -> bytes:
    """As text is stored: UTF-8 whatever the column's character set is."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return value
    raise TypeError(f"expected str or bytes, not {type(value).__name__}")


def sort_key(collation: str, is_new: bool = True) -> SortKey:
    """The function from a text to its sort key. With ``is_new`` false (a cluster from before TiDB 4.0's
    collations) every text is its own sort key."""
    if not is_new or collation in _PLAIN_BINARY:
        return text_bytes
    if collation in _PADDING_BINARY:
        return _padded
    if collation in _GENERAL_CI:
        return _general_ci
    if collation in _UNICODE_CI:
        return _unicode_ci
    if collation == "utf8mb4_0900_ai_ci":
        return _unicode_0900
    if collation == "gbk_bin":
        return _gbk_bin
    if collation == "gbk_chinese_ci":
        return _gbk_chinese
    raise UnsupportedCollationError(collation)


def is_binary_order(collation: str) -> bool:
    """Whether the sort key is the text itself up to trailing spaces."""
    return collation in _PADDING_BINARY or collation in _PLAIN_BINARY


def needs_restoring(column: ColumnInfo, is_new: bool = True) -> bool:
    """Whether a column's value cannot be had back from its sort key. A CHAR has no trailing spaces to lose."""
    if not is_new or column.type not in STRING_TYPES or column.collate in _PLAIN_BINARY:
        return False
    return column.collate not in _PADDING_BINARY or column.type in (ColumnType.VARCHAR, ColumnType.VARSTRING)


def _padded(value: str | bytes) -> bytes:
    return text_bytes(value).rstrip(b" ")


def _general_ci(value: str | bytes) -> bytes:
    """Two bytes a character. Where bytes are no UTF-8 the key ends, as TiDB has it."""
    weighed = general_ci(_text(value).rstrip(" "))
    try:
        return weighed.encode("utf-16-be")
    except UnicodeEncodeError as error:
        return weighed[: error.start].encode("utf-16-be")


def _unicode_ci(value: str | bytes) -> bytes:
    return _weighed(_text(value).rstrip(" "), weights.unicode_ci())


def _unicode_0900(value: str | bytes) -> bytes:
    """Spaces at the end weigh here."""
    return _weighed(_text(value), weights.unicode_0900())


def _weighed(text: str, table: dict[int, str]) -> bytes:
    # A weight may lie where UTF-16 has its halves of characters: it is a number, and goes out as it is.
    return text.translate(table).encode("utf-16-be", "surrogatepass")


def _gbk_bin(value: str | bytes) -> bytes:
    return _text(value).rstrip(" ").encode("gbk", "replace")


def _gbk_chinese(value: str | bytes) -> bytes:
    table = weights.gbk_chinese()
    return b"".join(table.get(character, b"?") for character in _text(value).rstrip(" "))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else text_bytes(value).decode("utf-8", "surrogateescape")
