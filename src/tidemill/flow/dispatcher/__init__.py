"""Rows in, rows with a destination out.

Downstreams that apply a row by its key cannot follow an update that changes the key. Such an
update is split here into a delete and an insert (``split_key_updates``). Where rows go needs no
decision yet: the file sink gives each physical table a folder of its own.
"""

from tidemill.flow.dispatcher.split import split_key_updates

__all__ = ["split_key_updates"]
