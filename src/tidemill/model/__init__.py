"""The nouns everything is written in. Imports none of our other packages.

ts       a moment of the cluster            span     a range of keys that we schedule
change   raw changes, as Arrow batches      table    tables, columns, indexes, types
row      decoded rows, as Arrow batches     ddl      a finished change of schema
"""
