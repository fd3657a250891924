"""Found by Spark by its name: ``spark.read.format("tidemill")`` works wherever this package is installed."""

from tidemill.spark.library.source import TidemillSource as DefaultSource

__all__ = ["DefaultSource"]
