"""What we ask of PD and TiKV: timestamps, regions, reads, writes and the change stream, over gRPC.

pd         PD's client: regions, stores, GC safepoints            pd_leader which member to ask; tso: timestamps
regions    the region cache and what each region error means      keyspace  whose keys they are: API V1 and V2
kv         requests by region, tried again until answered         feed/     the change stream, in bulk
snapshot   reads at a ts, across regions, through locks           raw       RawKV
locks      locks of others: waiting for them, resolving them      txn       transactions of our own
"""

import os

# Starting Spark's JVM forks this process; gRPC's handlers for that disturb its own open streams.
# A child that goes on to use gRPC is never forked here. gRPC reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# Its own log lines tell of every peer that goes away; what matters of that is in ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
