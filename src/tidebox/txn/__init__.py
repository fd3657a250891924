"""The rules of Percolator, as TiKV has them, without I/O: what a command may do to a key.

    lock and commit records of a key ──► rule ──► steps to take, or an error
    (records)                            │        (steps)            (errors)
                                         ├── prewrite      locks, asynchronous and one-phase commit
                                         ├── pessimistic   locks before the value is known
                                         └── finish        commit, rollback, and finding out which

``transactions`` runs them: it reads, waits its turn, applies the steps and tells the change stream.
"""
