"""Another TiKV: the last value of each key, by batched raw puts and deletes of API V2.

uri          what tikv:// URIs say
cluster      the target's PD and its clock, for both halves
sink         owner and writer
target       what tasks do: the last version of each key, with what is left of its time to live

A TiKV refuses no writer for being late: it has no fence. So each unit carries a deadline by the target's own clock, up
to which its task sends requests; whoever takes over waits until the last one that may be out there has passed.
"""

from tidemill.config.sink_uri import is_tikv_uri
from tidemill.sinks.tikv.uri import TikvOptions, parse_tikv_uri

__all__ = ["TikvOptions", "is_tikv_uri", "parse_tikv_uri"]
