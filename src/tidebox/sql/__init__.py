"""The SQL of the embedded upstream: TiDB's formats on top of the store."""
