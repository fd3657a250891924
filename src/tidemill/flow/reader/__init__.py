"""Messages in, rows out: topics read back, whoever wrote them.

    Received ──► reader of a protocol ──► Events: rows in batches by table, and DDLs, resolved-ts, admin events

``port`` says what a reader is. Each protocol has a module of the name that its encoder has in ``flow.encoder``.
"""

from tidemill.flow.reader.port import Events, ReadableProtocol, Reader, Received, RowsSeen

__all__ = ["Events", "ReadableProtocol", "Reader", "Received", "RowsSeen"]
