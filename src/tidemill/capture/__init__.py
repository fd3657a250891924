"""What acts on the decisions of ``control``: the owner of a changefeed, and processors of its tables.

changefeed   puts the parts together; ``opening`` begins it, ``running`` runs it in the foreground, ``patience`` ends it
owner        DDLs, sync points, the published checkpoint, the state as a whole; ``beside`` is how it uses the sink
processor    the tables that were assigned to it, in ``lanes``; ``lane`` is one of them, from regions to the sink
driver       a lane's ``lane_batches``, one after the other, on Spark (``engines``)
schema_feed  DDL jobs, for the owner and the lanes
copying      the initial copy
metadata     what a changefeed remembers across restarts
"""
