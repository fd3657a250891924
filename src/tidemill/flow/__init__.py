"""The data's path, stage by stage. Each stage is tested without Spark; ``spark/`` binds them.

puller ─► sorter ─► mounter ─► filter ─► dispatcher ─► encoder ─► a sink's target
regions   commit    rows       wanted    split where   messages   durable
          order                rows      keys change

decoder     what a unit's raw changes mean: for tables, the mounter with a schema
pipeline    all of that for one unit of work, fused into one task
schema      tables as of any ts, and the barriers that DDLs are
skew        a table that is most of a batch, shared among tasks
deadletter  rows that cannot be decoded
"""
