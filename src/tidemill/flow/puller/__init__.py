"""Upstream change stream → raw changes and resolved-ts.

In: spans to follow, each from a ts. Out: every change above that ts, at least once, and the
frontier of each span, behind which nothing new comes.

    Puller      finds the regions of each span, registers them, and finds them again when they are lost
    Coverage    one span: which registration follows which keys, and from where the next one starts
    RangeLock   lets at most one registration follow a key
    Frontier    the lowest resolved-ts over a span's key ranges
    Unblocker   resolves the locks of dead transactions where they make a region stand still
    Backoff     how long to leave a range alone after a loss
"""

from tidemill.flow.puller.frontier import Frontier
from tidemill.flow.puller.puller import ChangeReceiver, Puller, PullerStats, SlowestRegion
from tidemill.flow.puller.rangelock import RangeLock
from tidemill.flow.puller.stalls import LockResolving

__all__ = ["ChangeReceiver", "Frontier", "LockResolving", "Puller", "PullerStats", "RangeLock", "SlowestRegion"]
