"""What every hot stage is built from. Knows nothing of TiDB, Spark or sinks.

jit          how loops are compiled, and the machine operations that Numba lacks
checksum     of blocks, for files that only this machine reads
row_hashes   rows as numbers of 64 bits
gather       scattered rows copied into one place
floats, float_text       the shortest digits of a float: in compiled loops, and in bulk
assembler, program       messages assembled from columns by one compiled loop; what a message consists of
memory       freed memory given back to the system
encoded      many messages in one buffer
"""
