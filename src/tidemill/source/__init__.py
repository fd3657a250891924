"""Where units of work come from: tables of a TiDB, as they change and as they are at a ts, and keys of RawKV.

port         what a source says: which change stream, which span, which decoder
keyrange     a range of RawKV keys as a source
intake       which spans are read from the upstream, and where their changes wait until a batch takes them
portions     which tables are read together
scan/        tables as of a ts, and their changes between two, for copies, checks and Spark's own readers
"""
