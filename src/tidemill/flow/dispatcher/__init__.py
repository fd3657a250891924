"""Rows in, rows with a destination out.

    split       an update that changes a key becomes a delete and an insert, for downstreams that go by keys
    rules       which topic a table has, and by what its rows are spread over partitions (``sink.dispatchers``)
    topics      names of topics with ``{schema}`` and ``{table}`` in them
    partition   the partition of each row, by TiCDC's own hash, so that a row lands where it would there

Files need no such decision: each physical table has a folder of its own.
"""

from tidemill.flow.dispatcher.partition import PartitionRule
from tidemill.flow.dispatcher.rules import Destination, Dispatching, DispatchRules
from tidemill.flow.dispatcher.split import split_key_updates

__all__ = ["Destination", "DispatchRules", "Dispatching", "PartitionRule", "split_key_updates"]
