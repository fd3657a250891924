"""MySQL's text into pieces and tokens."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.tidb.lexer import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    Kind,
    MalformedTextError,
    digits_as_bytes,
    literal,
    number,
    pieces,
    quoted,
    tokens,
)

MODES = (0, ANSI_QUOTES, NO_BACKSLASH_ESCAPES, ANSI_QUOTES | NO_BACKSLASH_ESCAPES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a.`b c`", "word a, operator ., name b c", id="names"),
        pytest.param("`a``b` ``", "name a`b, name ", id="a doubled back-quote, and no name at all"),
        pytest.param("ü_$1 数据 a\u3000b", "word ü_$1, word 数据, word a\u3000b", id="letters of any language"),
        pytest.param("1a t.1b t.1 `t`.2", "word 1a, word t, operator ., word 1b, word t, operator ., integer 1, "
                     "name t, operator ., integer 2", id="names that begin with digits, and digits behind a point"),
        pytest.param("'it''s' \"a\"\"b\" n'x' N'y'", "string it's, string a\"b, string x, string y", id="strings"),
        pytest.param(r"'a\n\'\\' 'a\%b\_' '\0\q'", "string a\n'\\, string a\\%b\\_, string \0q", id="escapes"),
        pytest.param("1 1.5 .5 2. 1e3 1.5E-3 .5e1", "integer 1, decimal 1.5, decimal .5, decimal 2., float 1e3, "
                     "float 1.5E-3, float .5e1", id="numbers"),
        pytest.param("1e x1e5 1e5z 0x 0xz 0b2", "word 1e, word x1e5, word 1e5z, word 0x, word 0xz, word 0b2",
                     id="what looks like numbers"),
        pytest.param("x'0f' X'' 0xfff b'101' B'' 0b11", "hex 0f, hex , hex fff, bits 101, bits , bits 11", id="bytes"),
        pytest.param("a /* b */ c -- d\n# e\nf--", "word a, word c, word f", id="comments"),
        pytest.param("a --b", "word a, operator -, operator -, word b", id="two signs are no comment"),
        pytest.param("select /*+ hint */ 1 /*M! x */ /*T y */", "word select, integer 1", id="what is not executed"),
        pytest.param("/*!40101 a */ /*T! b */ /*T![x,y] c */ /*! d /* e */ f */",
                     "word a, word b, word c, word d, word f", id="comments that are executed"),
        pytest.param("/*!1234 a*/", "integer 1234, word a", id="a version has five digits"),
        pytest.param("2*/*c*/3", "integer 2, operator *, integer 3", id="a star before a comment"),
        pytest.param("2 */ 3", "integer 2, operator *, operator /, integer 3", id="nothing to close"),
        pytest.param("@a @`B c` @'d' @@e.f @@`g` ? @", "user_variable a, user_variable b c, user_variable d, "
                     "system_variable e.f, system_variable g, parameter ?, operator @", id="variables"),
        pytest.param("'r'@'%' r@h", "string r, user_variable %, word r, user_variable h", id="accounts"),
        pytest.param("j->>'$.a'<=>1||2:=3", "word j, operator ->>, string $.a, operator <=>, integer 1, operator ||, "
                     "integer 2, operator :=, integer 3", id="operators"),
        pytest.param("", "", id="nothing"),
    ],
)  # fmt: skip
def test_tokens(text: str, expected: str) -> None:
    *found, last = tokens(text)
    assert ", ".join(f"{token.kind.value} {token.text}" for token in found) == expected
    assert last.kind is Kind.END


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        (ANSI_QUOTES, r""""a""b" 'c\'"' """, [(Kind.NAME, 'a"b'), (Kind.STRING, "c'\"")]),
        (ANSI_QUOTES, r""""a\" 'b' """, [(Kind.NAME, "a\\"), (Kind.STRING, "b")]),
        (NO_BACKSLASH_ESCAPES, r"""'a\' "\n" """, [(Kind.STRING, "a\\"), (Kind.STRING, "\\n")]),
        (NO_BACKSLASH_ESCAPES, r"""'a\''b' """, [(Kind.STRING, "a\\'b")]),
        (ANSI_QUOTES | NO_BACKSLASH_ESCAPES, r"""'\' "\" """, [(Kind.STRING, "\\"), (Kind.NAME, "\\")]),
    ],
)
def test_the_sql_mode_decides_what_quotes_and_backslashes_are(
    mode: int, text: str, expected: list[tuple[Kind, str]]
) -> None:
    assert [(token.kind, token.text) for token in tokens(text, mode)[:-1]] == expected


@pytest.mark.parametrize(
    ("text", "start", "end", "message"),
    [
        pytest.param("select 'open", 7, 12, 'line 1 column 8: "\'open" cannot be read', id="a string"),
        pytest.param("a 'it''", 2, 7, "line 1 column 3", id="a string that ends in a quoted quote"),
        pytest.param('a\n "open', 3, 8, "line 2 column 2", id="a string of double quotes"),
        pytest.param("`open``", 0, 7, "line 1 column 1", id="a name"),
        pytest.param("a /* open", 2, 9, "line 1 column 3", id="a comment"),
        pytest.param("a /*! open", 10, 10, "line 1 column 11: a comment is not closed", id="an executed comment"),
        pytest.param("x'0'", 0, 1, "line 1 column 1", id="half a byte"),
        pytest.param("1, x'0g'", 3, 4, "line 1 column 4", id="no hexadecimal digit"),
        pytest.param("b'2'", 0, 1, "line 1 column 1", id="no bit"),
        pytest.param("a \x01", 2, 3, "line 1 column 3", id="a character that is nothing"),
    ],
)
def test_malformed_text_is_refused_with_its_place(text: str, start: int, end: int, message: str) -> None:
    with pytest.raises(MalformedTextError) as found:
        tokens(text)
    assert (found.value.start, found.value.end) == (start, end)
    assert str(found.value).startswith(message)


def test_words_are_compared_in_capitals_and_nothing_else_is() -> None:
    assert [token.upper for token in tokens("Select `select` 'select' 1")] == ["SELECT", "", "", "", ""]


def test_numbers_and_bytes_have_their_values() -> None:
    assert [number(token) for token in tokens("7 1.50 1e2")[:-1]] == [7, Decimal("1.50"), 100.0]
    assert [digits_as_bytes(token) for token in tokens("0xfff x'' b'100000001' b''")[:-1]] == [
        b"\x0f\xff", b"", b"\x01\x01", b"",
    ]  # fmt: skip


SCRAPS = st.sampled_from(
    ["'", '"', "`", "''", "\\", "/*", "*/", "/*!", "/*!40101", "/*T![a]", "/*M!", "--", "-- ", "#", "\n", " ", "a", "1",
     ".", "e5", "x'", "0x", "@", "@@", "?", "->>", "é", "\0", "\ud800", ";"]
)  # fmt: skip
TEXTS = st.lists(SCRAPS, max_size=30).map("".join) | st.text(max_size=40)


@given(TEXTS, st.sampled_from(MODES))
@example("/*! a */ */ '*/", 0)
def test_joined_again_the_pieces_are_the_text(text: str, mode: int) -> None:
    found = list(pieces(text, mode))
    assert "".join(piece.text for piece in found) == text
    assert all(text.startswith(piece.text, piece.start) and piece.text for piece in found)


@given(TEXTS, st.sampled_from(MODES))
def test_tokens_are_the_pieces_that_mean_something(text: str, mode: int) -> None:
    found = list(pieces(text, mode))
    unreadable = [piece for piece in found if piece.kind is Kind.UNREADABLE]
    depth = sum((piece.kind is Kind.OPEN) - (piece.kind is Kind.CLOSE) for piece in found)
    if unreadable or depth:
        with pytest.raises(MalformedTextError) as refused:
            tokens(text, mode)
        assert refused.value.start == (unreadable[0].start if unreadable else len(text))
        return
    read = tokens(text, mode)
    skipped = (Kind.SPACE, Kind.COMMENT, Kind.OPEN, Kind.CLOSE)
    meaning = [(piece.kind, piece.start, piece.start + len(piece.text)) for piece in found if piece.kind not in skipped]
    assert [(token.kind, token.start, token.end) for token in read[:-1]] == meaning


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=12)), max_size=5))
def test_what_is_quoted_comes_back(parts: list[tuple[bool, str]]) -> None:
    text = " , ".join(quoted(part) if is_name else literal(part) for is_name, part in parts)
    read = [token for token in tokens(text) if token.kind in (Kind.NAME, Kind.STRING)]
    assert [(token.kind is Kind.NAME, token.text.replace("\\%", "%").replace("\\_", "_")) for token in read] == [
        (is_name, part.replace("\\%", "%").replace("\\_", "_")) for is_name, part in parts
    ]
