"""Statements that read and change rows, from text to a tree.

    text ──► tokens ──► expressions (calls) ──► queries ──► statements: changes, transactions, settings, shows ──► tree

DDL has its own reader (``sql.parse``). This one is ours because it is on the path of every point update:
it costs tens of microseconds a statement, keeps the text of each expression (clients get it as the name of
a column) and reads literals as MySQL does. What it does not know it refuses, by name (1235) or by place (1064).
"""
