"""TiDB's formats, both ways: what its keys, documents and statements mean. Talks to nobody.

keys         table and row keys, memcomparable encoding
meta         where the schema lies in the key space; reading a snapshot of it
documents    databases, tables and DDL jobs, from TiDB's JSON
create_table a table as the CREATE TABLE that makes it
lexer        MySQL's text cut into tokens: strings, names, comments, numbers; quoting
statements, tokens, sql_mode       whole statements, text that is changed, what a mode does to it
mysql_type   MySQL's words for a column's type
collation    which characters are equal
"""
