"""Weights of characters in the collations that need tables: Unicode's (4.0 and 9.0), and that of GBK by pronunciation.

    weights_NAME.xz ──► a table for ``str.translate``: character → text of its weights, 16 bits each

A file holds, each with its length before: how far each character lies from the one before it (255: go on adding),
how many units each one's weights have, and the weights, for Unicode's first all high bytes and then all low ones.
Characters that are not listed have the weights that Unicode derives for ideographs and the unknown.
"""

import lzma
import struct
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Final

_HEAD: Final = struct.Struct(">III")
_HANGUL: Final = range(0xAC00, 0xD7A4)
_JAMO: Final = (0x1100, 0x1161, 0x11A7)  # the first of the leading, of the vowels, and before the trailing ones


class _Unicode(dict[int, str]):
    def __missing__(self, character: int) -> str:
        found = self._derived(character)
        self[character] = found
        return found

    def _derived(self, character: int) -> str:
        if 0x4E00 <= character <= 0x9FFF:
            base = 0xFB40
        elif 0x3400 <= character <= 0x4DBF or 0x20000 <= character <= 0x2A6DF:
            base = 0xFB80
        else:
            base = 0xFBC0
        return chr(base + (character >> 15)) + chr(character & 0x7FFF | 0x8000)


class _Unicode4(_Unicode):
    def _derived(self, character: int) -> str:
        """What lies beyond 16 bits is all the same."""
        return super()._derived(character) if character <= 0xFFFF else "\ufffd"


class _Unicode9(_Unicode):
    def _derived(self, character: int) -> str:
        """A syllable of Hangul weighs what its letters do."""
        if character not in _HANGUL:
            return super()._derived(character)
        lead, rest = divmod(character - _HANGUL.start, 588)
        vowel, tail = divmod(rest, 28)
        letters = [_JAMO[0] + lead, _JAMO[1] + vowel, *([_JAMO[2] + tail] if tail else [])]
        return "".join(self[letter] for letter in letters)


@cache
def unicode_ci() -> dict[int, str]:
    return _Unicode4(_texts("unicode_ci"))


@cache
def unicode_0900() -> dict[int, str]:
    return _Unicode9(_texts("0900_ai_ci"))


@cache
def gbk_chinese() -> dict[str, bytes]:
    characters, sizes, body = _read("gbk_chinese_ci")
    ends = list(accumulate(sizes))
    pairs = zip(characters, sizes, ends, strict=True)
    return {chr(character): body[end - size : end] for character, size, end in pairs}


def _texts(name: str) -> dict[int, str]:
    characters, sizes, body = _read(name)
    half = len(body) // 2
    units = "".join(chr(high << 8 | low) for high, low in zip(body[:half], body[half:], strict=True))
    ends = accumulate(sizes)
    pairs = zip(characters, sizes, ends, strict=True)
    return {character: units[end - size : end] for character, size, end in pairs}


def _read(name: str) -> tuple[list[int], bytes, bytes]:
    data = lzma.decompress((files(__package__) / f"weights_{name}.xz").read_bytes())
    steps, count, _ = _HEAD.unpack_from(data)
    at = _HEAD.size
    characters: list[int] = []
    place = -1
    for step in data[at : at + steps]:
        if step == 255:
            place += 255
            continue
        place += step + 1
        characters.append(place)
    at += steps
    return characters, data[at : at + count], data[at + count :]
