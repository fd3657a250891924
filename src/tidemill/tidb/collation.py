"""The collation ``general_ci``: which characters count as which."""

import unicodedata
from functools import cache
from typing import Final


def general_ci(text: str) -> str:
    """Each character as the one that it counts as: its capital without accents."""
    return text.translate(_weights())


class _Weights(dict[int, int]):
    """From character to weight; those not named weigh what they are, and those beyond 16 bits all the same."""

    def __missing__(self, character: int) -> int:
        return character if character <= 0xFFFF else 0xFFFD


# The weights of general_ci are the letters of Unicode 3.0 without case and accents. Only these blocks have such.
_BLOCKS: Final = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x1E, 0x1F, 0x21, 0x24, 0xFF)
_ODD: Final = {0xDF: ord("S"), 0x3F2: 0x3A3, 0x419: 0x419, 0x439: 0x419}  # ß, lunate sigma; Й keeps its breve
# Small letters whose capitals came to Unicode only later.
_UNPAIRED: Final = frozenset(
    {0x19E, 0x3D9, 0x3F5, 0x48B, 0x4C6, 0x4CA, 0x4CE, 0x4CF, 0x214E, 0x2184, *range(0x501, 0x511, 2)}
)


@cache
def _weights() -> _Weights:
    found = _Weights(_ODD)
    for block in _BLOCKS:
        for character in range(block << 8, (block + 1) << 8):
            if character not in _ODD and character not in _UNPAIRED:
                weight = _letter(character)
                if weight != character:
                    found[character] = weight
    return found


def _letter(character: int) -> int:
    """The capital without accents. The old Unicode data tell which capitals there were."""
    letter = _without_accents(chr(character))
    capital = letter.upper()
    if len(capital) == 1 and unicodedata.ucd_3_2_0.category(capital) != "Cn":
        letter = _without_accents(capital)
    return ord(letter)


def _without_accents(letter: str) -> str:
    while unicodedata.ucd_3_2_0.category(letter).startswith("L"):
        parts = unicodedata.ucd_3_2_0.decomposition(letter).split()
        if len(parts) != 2 or parts[0].startswith("<"):
            break
        letter = chr(int(parts[0], 16))
    return letter
