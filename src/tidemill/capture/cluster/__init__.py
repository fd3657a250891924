"""A capture of a cluster: a session of it, its agents, and what it owns.

server      one capture after the other: whoever loses its session begins anew, under another id
capture     one life of a capture: session, post, election; what it follows, and what it owns
snapshot    what etcd says of the cluster, looked at twice a second
following   agent: obeys the owner of a changefeed, and runs a processor on this machine
  executor  what commands of the scheduler's agent do to the processor
  link      how its lanes reach the owner
  workplace what they work with: PD, schema feed, Spark
owning      owner of one changefeed: DDLs, checkpoint, and which capture has which tables
feeds       all changefeeds of the owner: their states, errors and tries
changes     what users ask of changefeeds, as transactions
"""
