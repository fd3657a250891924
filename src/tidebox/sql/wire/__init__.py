"""The MySQL protocol of the embedded TiDB: clients in, statements out, results back.

    client ══ packets ══► channel ► connection ── statement, parameters ──► Session (session.py)
           ◄═ packets ══            rows, columns ◄── Affected | Rows | SqlError ──

    server.py       takes connections in, one thread each
    connection.py   the commands of one client;  answers.py what it is told;  prepared.py its prepared statements
    handshake.py    who may come in
    channel.py      packets over a socket;  packets.py their bytes
    columns.py      column definitions;  rows.py values as text and binary;  parameters.py values that come in
    errors.py       MySQL's error numbers, states and texts

Why our own: the PyPI package ``mysql-mimic`` (3.0.5) is kept up, but it is an alpha whose sessions
cannot say how many rows were affected or which id was given, nor report a transaction; it writes
parameters into the statement's text, answers one result set a query, and knows neither unsigned
integers nor TINYINT beyond 0 and 1 in binary. It brings sqlglot's own ideas of SHOW and
INFORMATION_SCHEMA along. Nothing of it would have remained.

Why threads: a session is blocking Python against a store in this process, so under asyncio each
statement would have to cross to an executor and back. Measured with 16 clients and a trivial
statement: 93 µs a round trip with a thread per connection, 193 µs with asyncio and an executor.
"""
