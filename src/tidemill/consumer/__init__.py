"""Topics read back: rows that a changefeed, ours or TiCDC's, has written to Kafka go to a sink.

    partitions ─► listener: messages ─► reader ─► events ─┬─ rows ──► staged on disk
                                                          └─ marks ─► alignment ─► what to do next
    staged rows up to where the partitions are aligned ─► Spark: sorted, copies dropped ─► sink's target
    DDLs, once all partitions are there ─► sink's owner

alignment   which rows may be written and which DDL may run, in pure code
topic       which topics can be read
listening   messages of Kafka, by partition
staging     rows on disk until their turn comes
tables      names of tables and columns, which the topics have, to the ids that sinks go by
state       what survives a restart
applying    what is done to the sink
consume     puts them together
checker     whether a topic keeps what its protocol promises; ``memory`` and ``report`` are parts of it
"""
