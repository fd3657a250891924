"""Topics read back, as their readers meet them: what Kafka holds, whoever wrote it.

    messages of a topic ──► reader of the protocol (flow.reader) ──► Events ──► checker: is it what was promised?

``checker`` holds a topic to what its protocol promises, in bounded memory; ``memory`` is what it remembers of rows, and
``report`` what it says in the end.
"""
