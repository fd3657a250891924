"""The change stream of TiKV's stores, from bytes to raw changes.

    store ── ChangeDataEvent bytes ──► wire ── rows ──► matcher ── raw changes, resolved-ts ──► client ──► puller

wire      walks the protobuf bytes of many messages at once into arrays; nothing per row in Python
matcher   pairs each COMMIT with its PREWRITE, per registration of a region
batch     gathers matched rows into Arrow batches
client    one stream per store, shared by all subscriptions; registers, receives, reports what was lost
"""
