"""The pure core: what the barrier decides, and why.

No asyncio, no clock, no logging, no randomness: facts go in, decisions come out. Time, where it matters, is an
argument. Everything here is tested by properties, and every rule by the history that breaks without it.

* :mod:`~aiokcc.core.periods`: timestamps, periods, boundaries; durations and times as people write them
* :mod:`~aiokcc.core.partitions`: partitions, the agreed set
* :mod:`~aiokcc.core.limit`: the limit and the operator's request
* :mod:`~aiokcc.core.progress`: what a member reports, and what a cut holds
* :mod:`~aiokcc.core.ledger`: the member's rule: who may pass, when to report
* :mod:`~aiokcc.core.leader`: the leader's rule: may the limit move, and to where
* :mod:`~aiokcc.core.run`: what the group agreed on when it started
* :mod:`~aiokcc.core.paths`: the names of the nodes

In a managed group:

* :mod:`~aiokcc.core.subscriptions`: what a member may be given, and its registration
* :mod:`~aiokcc.core.takers`, :mod:`~aiokcc.core.assignors`: who may take what; range, round robin and sticky assignors
* :mod:`~aiokcc.core.pipelines`: partitions that go together, to one of the drivers of a pipeline
* :mod:`~aiokcc.core.sticky`, :mod:`~aiokcc.core.loads`: even with the fewest moves; even by the user's weights
* :mod:`~aiokcc.core.assignments`, :mod:`~aiokcc.core.group`: how an assignment stands; the machine that changes it
* :mod:`~aiokcc.core.wheel`, :mod:`~aiokcc.core.delayed`: the timing wheel; operations that end by an event or at a deadline
"""
