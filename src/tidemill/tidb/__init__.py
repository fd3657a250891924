"""TiDB's formats, both ways: what its keys, documents and statements mean. Talks to nobody.

keys         table and row keys, memcomparable encoding
meta         where the schema lies in the key space; reading a snapshot of it
documents    databases, tables and DDL jobs, from TiDB's JSON
create_table a table as the CREATE TABLE that makes it
statements, tokens, sql_mode       MySQL's text: names, words, what a mode does to them
mysql_type   MySQL's words for a column's type
collation    which characters are equal
"""
