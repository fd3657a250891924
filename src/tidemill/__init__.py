"""Tidemill: change data capture for TiDB and TiKV on Apache Spark.

The tree tells the way of the data: ``upstream`` asks, ``flow`` carries, ``spark`` runs,
``control`` decides, ``store`` is an upstream in the box. ``model`` holds the nouns.
"""

__version__ = "0.1.0"
