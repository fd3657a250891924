"""Binds the flow to Spark. The only package that imports pyspark.

session    a Spark session sized for this work, quiet and quick to start
endpoint   how Spark's own Python processes ask the processor, over loopback
source     the stream source: its offset is a ts, its partitions are units of work
job        the streaming query: units → the fused pipeline → receipts → commit
daemon     forks Python workers that have the pipeline loaded already
"""
