"""A whole cluster in one thread, driven by a seed: captures that crash, hang and come back, words that are lost.

    seed ──► World (time, chance) ──► captures, network, store, upstream ──► what must always hold is checked as it goes

What decides is the real thing: the scheduler's coordinator and agents, ownership, members, barriers and progress. What
they act upon is simulated: sessions and elections, lanes and their workers, a sink that knows terms and generations.
A run of a seed is always the same, so one that fails can be looked at: ``tidemill simulate --seed N``.

What must hold, after each step:

- the checkpoint never moves back, nor does a table; it is never above a table, nor above what is resolved
- whatever is said to be durable is in the sink
- the rows of a table come, for the first time, in the order of their commit-ts, those before a DDL before it runs
- a table has one writer whose words have an effect; each table is with one processor, or on its way
- when faults end, every table has a writer again, and the checkpoint gets to the present
"""

from tidemill.testing.simulation.simulation import Outcome, Simulation, simulate
from tidemill.testing.simulation.world import Violation

__all__ = ["Outcome", "Simulation", "Violation", "simulate"]
