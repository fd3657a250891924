"""Schemas that change online, as F1 and TiDB change them.

    statement ──► columns, tables, alter: what to do, checked against the schema ──► jobs: a job in its row
                                                                                         │
    worker: one transaction a step ◄── steps: (job, documents) → (job, documents) ◄──────┘

Each step is a transaction with its own schema version, and the next one waits until every node has it.
"""
