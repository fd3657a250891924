"""The change stream of TiKV's stores, from bytes to raw changes.

    store ── ChangeDataEvent bytes ──► wire ── rows ──► matcher ── raw changes, resolved-ts ──► client ──► puller

wire          walks the protobuf bytes of many messages at once into arrays; nothing per row in Python
matcher       pairs each COMMIT with its PREWRITE, per registration of a region (``kernels``: its loops)
bounds        a span's ends as plain keys, to drop rows outside it
registration  what is asked for, and what the listener hears
stream        one stream to one store, from its opening to its end
client        a stream per store, shared by all requests; opens it again when it breaks
"""
