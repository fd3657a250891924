"""Tidemill: change data capture for TiDB and TiKV on Apache Spark.

The tree tells the way of the data: ``upstream`` asks, ``flow`` carries, ``spark`` runs,
``control`` decides, ``store`` is an upstream in the box. ``model`` holds the nouns.
"""

from tidemill.kernelcache import use_own_folder

__version__ = "0.1.0"

use_own_folder()
