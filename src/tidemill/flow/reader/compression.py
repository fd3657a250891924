"""Values that were compressed before they were sent (``large-message-handle-compression``), each by itself."""

from enum import StrEnum

import numpy as np
import pyarrow as pa

from tidemill.flow.reader.documents import Texts, frozen

_MOST_TIMES = 256  # that bytes become larger; no compression here is better, so what claims to be is damaged
_SPARE = 1024


class Compression(StrEnum):
    NONE = "none"
    SNAPPY = "snappy"  # in its block format
    LZ4 = "lz4"  # in its frame format


def decompressed(texts: Texts, compression: Compression) -> Texts:
    """The same pieces as they were; of one that is not compressed like this nothing is left."""
    if compression is Compression.NONE:
        return texts
    pieces = [_decompressed(texts[row], compression) for row in range(len(texts))]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return Texts(frozen(np.frombuffer(b"".join(pieces), np.uint8)), starts, ends)


def _decompressed(piece: bytes, compression: Compression) -> bytes:
    if not piece:
        return b""
    most = _MOST_TIMES * len(piece) + _SPARE
    try:
        if compression is Compression.SNAPPY:
            size = _claimed(piece)
            return pa.Codec("snappy").decompress(piece, size, asbytes=True) if 0 <= size <= most else b""
        with pa.CompressedInputStream(pa.BufferReader(piece), "lz4") as stream:
            found: bytes = stream.read(most + 1)
    except (pa.ArrowInvalid, OSError):
        return b""
    return found if len(found) <= most else b""


def _claimed(piece: bytes) -> int:
    """The size that snappy's block says it becomes; -1 if it says none."""
    size = 0
    for place, byte in enumerate(piece[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            return size
    return -1
