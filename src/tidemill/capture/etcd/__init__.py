"""What captures of one cluster remember together, in etcd: who is there, who owns, and each changefeed's state.

client     keys, transactions, leases; from any thread, calls block
keys       which key holds what: TiCDC's layout, and ours beside it
session    a lease that a thread of its own keeps alive
election   who is the owner, and the claim that each of its writes carries
documents  the JSON of captures and changefeeds, as TiCDC writes it
home       a changefeed's state: the ``Home`` that an owner saves it to
"""
