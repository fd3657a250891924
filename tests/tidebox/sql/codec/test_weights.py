"""Sort keys in the collations with tables, as TiDB's WEIGHT_STRING gives them."""

import pytest

from tidebox.sql.codec.collation import sort_key


@pytest.mark.parametrize(
    ("collation", "text", "key"),
    [
        pytest.param("utf8mb4_unicode_ci", "a b", "0e3302090e4a", id="a space between weighs"),
        pytest.param("utf8mb4_unicode_ci", "B  ", "0e4a", id="spaces at the end do not"),
        pytest.param("utf8mb4_unicode_ci", "ß", "0fea0fea", id="two letters in one"),
        pytest.param("utf8mb4_unicode_ci", "一", "fb40ce00", id="an ideograph by its number"),
        pytest.param("utf8mb4_unicode_ci", "가", "fbc1ac00", id="Hangul was not known"),
        pytest.param("utf8mb4_unicode_ci", "a🙂", "0e33fffd", id="beyond 16 bits all weigh the same"),
        pytest.param("utf8mb4_0900_ai_ci", "a b  ", "1c4702091c6002090209", id="here the last spaces weigh"),
        pytest.param("utf8mb4_0900_ai_ci", "각", "3bf53c733cd1", id="a syllable by its letters"),
        pytest.param("utf8mb4_0900_ai_ci", "🙂", "163d", id="a sign beyond 16 bits"),
        pytest.param("utf8mb4_0900_ai_ci", "\U00020000", "fb848000", id="a rare ideograph"),
        pytest.param("utf8mb4_0900_ai_ci", "\x01", "", id="what weighs nothing"),
        pytest.param("gbk_chinese_ci", "a一 ", "41ca26", id="by pronunciation, letters without case"),
        pytest.param("gbk_bin", "a一 ", "61d2bb", id="the text in GBK"),
    ],
)
def test_sort_keys(collation: str, text: str, key: str) -> None:
    assert sort_key(collation)(text).hex() == key
