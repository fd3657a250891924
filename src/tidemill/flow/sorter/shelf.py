"""The segments of a changefeed that may be asked for, by their identity: those sealed and not yet released.

sorter (event loop) ── put, take ──► Shelf ◄── find ── server (its own threads)
"""

from tidemill.flow.sorter.segment import Segment


class Shelf:
    """Each step is one of a dict, so threads need no lock."""

    def __init__(self) -> None:
        self._segments: dict[bytes, Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def put(self, segment: Segment) -> None:
        self._segments[segment.layout.identity] = segment

    def take(self, segment: Segment) -> None:
        """It is being released, or its sorter is being closed."""
        self._segments.pop(segment.layout.identity, None)

    def find(self, identity: bytes) -> Segment | None:
        return self._segments.get(identity)
