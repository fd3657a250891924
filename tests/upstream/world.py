"""Regions that split and merge by TiKV's arithmetic, without any server: what pictures of them look like."""

from dataclasses import dataclass, replace

from tidemill.model.span import KEY_END, KEY_START, Span
from tidemill.upstream.topology import Peer, Region

PEERS = (Peer(1, 1), Peer(2, 2), Peer(3, 3))


def key(n):
    return b"%04d" % n


@dataclass
class World:
    """All keys, in regions side by side. ``moments`` are the pictures from the beginning on."""

    def __init__(self):
        self.regions = [Region(1, Span(KEY_START, KEY_END), 1, 1, PEERS, PEERS[0])]
        self.next_id = 2
        self.moments = [list(self.regions)]

    def split(self, n):
        """Cut at ``key(n)``; the right part keeps the id. Nothing happens at a border."""
        at = key(n)
        parent = self.of(at)
        if parent.span.start != at:
            left = replace(parent, id=self.next_id, span=Span(parent.span.start, at), version=parent.version + 1)
            right = replace(parent, span=Span(at, parent.span.end), version=parent.version + 1)
            self.next_id += 1
            self._become(parent, [left, right])

    def merge(self, n, *, into_left):
        """Join the n-th region with its right neighbour."""
        if len(self.regions) < 2:
            return
        at = n % (len(self.regions) - 1)
        left, right = self.regions[at : at + 2]
        target = left if into_left else right
        source = right if into_left else left
        version = max(source.version + 1, target.version) + 1
        whole = replace(target, span=Span(left.span.start, right.span.end), version=version)
        self.regions[at : at + 2] = [whole]
        self.moments.append(list(self.regions))

    def of(self, at):
        return next(r for r in self.regions if at in r.span)

    def _become(self, old, new):
        at = self.regions.index(old)
        self.regions[at : at + 1] = new
        self.moments.append(list(self.regions))
