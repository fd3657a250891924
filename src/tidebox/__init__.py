"""The embedded upstream: a PD and TiKV stores in one process, over RocksDB, speaking the real protocol.

upstream      puts it together, for the command and for tests
├── pd        all that is at PD's one address: front, http_paths, pd_service, gc_service, keyspace_service, etcd
├── faults, chaos      what can be done to it by name, and by itself
├── stores    how their servers (``rpc``) come and go; kv_service, txn_service, raw_service, batch_service, cdc_service
├── cluster   the state and its one mutex
│   ├── regions       who answers for which keys; epochs (``boundaries``: where to cut, ``guard``: who is refused)
│   ├── transactions  commands of Percolator, whose rules are in ``txn``; reads, inflight (memory locks)
│   ├── subscriptions, feed: who is told what, resolved-ts, bounded streams
│   ├── raw, hlc      keys without transactions, stamped by the stores' own clocks
│   └── tso, safepoints, gc
├── history, load     recorded histories: at once, or live at a pace
└── mvcc, blocks, kernels, engine           versions on disk, one at a time and in bulk
"""
