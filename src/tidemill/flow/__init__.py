"""The data's path, stage by stage. Each stage is tested without Spark; ``spark/`` binds them.

puller ─► sorter ─► mounter ─► encoder ─► sink
regions   commit    rows       messages   durable
          order
"""
