"""Messages in, rows out: topics read back, whoever wrote them.

    Received ──► reader of a protocol ──► Events: rows in batches by table, and DDLs, resolved-ts, admin events

``port`` says what a reader is, ``registry`` which there are. Each protocol has a module of the name that its encoder
has in ``flow.encoder``. They share how documents are read: ``shape`` says what documents of one kind have in common,
``matching`` compares them with it, ``documents`` sorts them by it, ``cells`` turns the values into columns, ``weave``
puts the columns together, and ``tables`` describes a table as messages tell of it.
"""

from tidemill.flow.reader.port import Events, ReadableProtocol, Reader, Received, RowsSeen

__all__ = ["Events", "ReadableProtocol", "Reader", "Received", "RowsSeen"]
