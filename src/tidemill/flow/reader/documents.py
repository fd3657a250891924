"""Documents sorted by shape, whatever their spelling.

    Texts (pieces of one buffer) ──► by signature ──► by shape ──► Found: where the values of each lie

Shapes are remembered. A document that fits none of those known is learnt from, as long as there are few; what is still
left is put into one canonical spelling first, document by document. So any JSON is read, and what is written the
usual way is read fast.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from tidemill.columnar.jit import Bytes, Longs
from tidemill.flow.reader.matching import match_all, number_groups, signatures
from tidemill.flow.reader.shape import Path, Shape, UnclearError, Wanted, canonical, learn, parse

M = TypeVar("M")
_MOST_GROUPS = 4096  # of which shapes are remembered
_MOST_SHAPES = 64  # of a group
_MOST_NEW = 16  # that are learnt from documents as they are written, at once
NO_JSON = "it is no JSON, or compressed otherwise than large-message-handle-compression says"


@dataclass(slots=True)
class Texts:
    """Pieces of one buffer. What is appended to the buffer later leaves those before it where they are."""

    data: Bytes
    starts: Longs
    ends: Longs

    @classmethod
    def of(cls, values: pa.Array) -> "Texts":
        """The values of a binary array; a null has no bytes."""
        if not len(values):
            return cls(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
        body = values.buffers()[2]
        data = np.frombuffer(body, np.uint8) if body is not None else np.empty(0, np.uint8)
        offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
        starts, ends = offsets[:-1], offsets[1:]
        if values.null_count:
            ends = np.where(values.is_valid().to_numpy(zero_copy_only=False), ends, starts)
        return cls(frozen(data), starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def groups(self, marker: bytes = b"") -> Iterator[tuple[int, Longs]]:
        """The documents by what they say up to the ``marker``, numbers aside: a signature and which they are."""
        count = len(self)
        if not count:
            return
        signs = np.empty(count, np.uint64)
        signatures(self.data, self.starts, self.ends, frozen(np.frombuffer(marker, np.uint8)), signs)
        slots = np.full(1 << (2 * count - 1).bit_length(), -1, np.int64)
        group, firsts = np.empty(count, np.int64), np.empty(count, np.int64)
        groups = number_groups(signs, slots, group, firsts)
        if groups == 1:
            yield int(signs[0]), np.arange(count)
            return
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=groups))
        for n, first in enumerate(firsts[:groups].tolist()):
            yield int(signs[first]), order[ends[n - 1] if n else 0 : ends[n]]

    def append(self, documents: list[bytes]) -> "Texts":
        """These as pieces of the same buffer, at its end."""
        more = np.frombuffer(b"".join(documents), np.uint8)
        ends = np.cumsum([len(document) for document in documents], dtype=np.int64) + len(self.data)
        starts = np.concatenate([[len(self.data)], ends[:-1]]).astype(np.int64)
        self.data = frozen(np.concatenate([self.data, more]))
        return Texts(self.data, starts, ends)


def frozen(data: Bytes) -> Bytes:
    """With all of them so, one compiled form of a loop serves all."""
    view = data.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True)
class Found(Generic[M]):
    """Documents of one shape: ``rows`` says which. What hole ``h`` of the n-th holds is ``data[from_[h, n]:to[h, n]]``
    of the Texts, a ``Token`` of the kind ``tokens[h, n]``."""

    meaning: M
    rows: Longs
    from_: Longs
    to: Longs
    tokens: Bytes

    def pick(self, places: Longs) -> "Found[M]":
        """Some of them."""
        parts = (np.ascontiguousarray(each[:, places]) for each in (self.from_, self.to, self.tokens))
        return Found(self.meaning, self.rows[places], *parts)


@dataclass(frozen=True, slots=True)
class Refused:
    row: int
    why: str


@dataclass(frozen=True, slots=True)
class _Unclear:
    why: str


class Shapes(Generic[M]):
    """Remembers the shapes of documents by group. ``describe`` gets a document's content and its holes and says what
    all documents of its shape mean; it raises UnclearError, or one of Python's own, where it makes no sense."""

    def __init__(self, wanted: Wanted, describe: Callable[[Any, list[Path]], M]) -> None:
        self._wanted = wanted
        self._describe = describe
        self._known: OrderedDict[Hashable, list[Shape[M | _Unclear]]] = OrderedDict()

    def find(self, texts: Texts, rows: Longs, group: Hashable) -> tuple[list[Found[M]], list[Refused]]:
        """All documents ``rows`` by shape, and those that are not to be read."""
        found: list[Found[M | _Unclear]] = []
        refused: list[Refused] = []
        known = self._of_group(group)
        for shape in list(known):
            rows = _matched(shape, texts, rows, rows, found)
            if not len(rows):
                break
        rows = self._learn(texts, rows, known, found, refused)
        if len(rows):
            self._spell_out(texts, rows, known, found, refused)
        clear: list[Found[M]] = []
        for each in found:
            if isinstance(each.meaning, _Unclear):
                refused += [Refused(row, each.meaning.why) for row in each.rows.tolist()]
            else:
                clear.append(each)  # type: ignore[arg-type]  # its meaning is none of the unclear ones
        return clear, refused

    def _of_group(self, group: Hashable) -> list[Shape[M | _Unclear]]:
        known = self._known.setdefault(group, [])
        self._known.move_to_end(group)
        if len(self._known) > _MOST_GROUPS:
            self._known.popitem(last=False)
        return known

    def _learn(
        self,
        texts: Texts,
        rows: Longs,
        known: list[Shape[M | _Unclear]],
        found: list[Found[M | _Unclear]],
        refused: list[Refused],
    ) -> Longs:
        """Learn from documents as they are written; returns those that are left."""
        learnt, odd = 0, []
        while len(rows) and learnt < _MOST_NEW and len(known) < _MOST_SHAPES:
            shape, why = self._shape(texts[rows[0]])
            if shape is None:
                if why:
                    refused.append(Refused(int(rows[0]), why))
                else:
                    odd.append(int(rows[0]))
                rows = rows[1:]
                continue
            known.append(shape)
            learnt += 1
            rows = _matched(shape, texts, rows, rows, found)
        return np.concatenate([np.array(odd, np.int64), rows]) if odd else rows

    def _spell_out(
        self,
        texts: Texts,
        rows: Longs,
        known: list[Shape[M | _Unclear]],
        found: list[Found[M | _Unclear]],
        refused: list[Refused],
    ) -> None:
        """Read documents in their canonical spelling."""
        documents, places = [], []
        for row in rows.tolist():
            try:
                documents.append(canonical(texts[row]))
                places.append(row)
            except ValueError:
                refused.append(Refused(row, NO_JSON))
        if not places:
            return
        spelled, left = texts.append(documents), np.arange(len(places))
        original = np.array(places, np.int64)
        for shape in list(known):
            left = _matched(shape, spelled, left, original, found)
        while len(left):
            shape_, why = self._shape(spelled[left[0]])
            if shape_ is None:
                refused.append(Refused(places[int(left[0])], why))
                left = left[1:]
                continue
            if len(known) < _MOST_SHAPES:
                known.append(shape_)
            left = _matched(shape_, spelled, left, original, found)

    def _shape(self, document: bytes) -> tuple[Shape[M | _Unclear] | None, str]:
        """None and why it is not to be read; or None and "" where its spelling is too odd to learn from."""
        try:
            content = parse(document)
        except ValueError:
            return None, NO_JSON
        learnt = learn(document, self._wanted)
        if learnt is None:
            return None, ""
        literals, ends, kinds, holes = learnt
        meaning: M | _Unclear
        try:
            meaning = self._describe(content, holes)
        except UnclearError as unclear:
            meaning = _Unclear(str(unclear))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            meaning = _Unclear("its members are not those of the protocol")
        shape: Shape[M | _Unclear] = Shape(frozen(literals), ends, kinds, meaning)
        return shape, ""


def _matched(shape: Shape[M], texts: Texts, rows: Longs, original: Longs, found: list[Found[M]]) -> Longs:
    """Those of ``rows`` that do not match. ``original`` are their numbers before they were spelled anew, if they were:
    then ``rows`` are places in it."""
    count, holes = len(rows), len(shape.kinds)
    from_, to = np.empty((holes, count), np.int64), np.empty((holes, count), np.int64)
    tokens, is_match = np.empty((holes, count), np.uint8), np.empty(count, np.bool_)
    args = (texts.data, texts.starts, texts.ends, np.ascontiguousarray(rows), shape.literals, shape.ends, shape.kinds)
    matches = match_all(*args, from_, to, tokens, is_match)
    named = rows if original is rows else original[rows]
    if matches == count:
        found.append(Found(shape.meaning, named, from_, to, tokens))
        return rows[:0]
    if matches:
        found.append(Found(shape.meaning, named, from_, to, tokens).pick(is_match))
    return rows[~is_match]
