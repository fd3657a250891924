"""Filters: which tables, rows, columns and DDLs a changefeed passes on, in TiCDC's words.

in      a ChangefeedConfig, whose rules and expressions are text
out     TableFilter    which tables are captured
        LeftOut        which are not, though they are asked for
        DdlFilter      which DDLs go downstream
        RowFilter      RowBatch → RowBatch without the rows that are to be left out
        ColumnSelector RowBatch → RowBatch with the columns that are to go out

rules    names against patterns             syntax ─► expression   SQL conditions, compiled to Arrow
events   the words of ignore-event                    operators, functions, moments, values

Whatever cannot be read is refused when a filter is made; what does not fit a table, when that table is met.
"""

from tidemill.flow.filter.rows import ColumnSelector, RowFilter
from tidemill.flow.filter.tables import DdlFilter, LeftOut, TableFilter, Verdict
from tidemill.model.changefeed import ChangefeedConfig

__all__ = ["ColumnSelector", "DdlFilter", "LeftOut", "RowFilter", "TableFilter", "Verdict", "check_filters"]


def check_filters(config: ChangefeedConfig) -> None:
    """Raises FilterError for a rule, an event or an expression that cannot be read, before anything is started."""
    for kind in (TableFilter, DdlFilter, RowFilter, ColumnSelector):
        kind(config)
