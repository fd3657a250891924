"""Which capture has which tables of a changefeed, and how they get from one to another. Pure: no clock, socket or lock.

    captures that are alive, tables, requests of users           messages, fences, handovers
              └──────────► Coordinator (owner) ──────────────────────────► ▲
                             captures   who is there, and initialized
                             replicas   one machine per table that is not simply one of the rest
                             policies   what should move: basic, drain, move, rebalance, balance
    messages ────────────► Agent (each capture) ── Prepare, Run, Stop, Release, Reset ──► executor

A move has two phases: the target prepares the table (pulls and sorts it) while its source goes on writing; only then
does the source stop, and the target continues where it ended. ``REST`` stands for every table that nobody was given by
name; it moves like a table. Before tables of a capture that is gone are given away, the owner fences it in the sink.
"""
