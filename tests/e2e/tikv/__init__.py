"""The official client against the embedded upstream: a stranger, unchanged, in a process of its own."""
