"""The pure core: it makes the decisions of the barrier.

No asyncio, no clock, no logging, no randomness: facts go in, decisions come out. Time, where it matters, is an
argument. Everything here is tested by properties, and every rule by the history that breaks without it.

* :mod:`~aiokcc.core.periods`: timestamps, periods, boundaries; durations and times as people write them
* :mod:`~aiokcc.core.partitions`: partitions, the agreed set
* :mod:`~aiokcc.core.limit`: the limit and the operator's request; :mod:`~aiokcc.core.announcement`: the name that announces it
* :mod:`~aiokcc.core.report`, :mod:`~aiokcc.core.marks`: the contents of reports and cuts; the marks that they share
* :mod:`~aiokcc.core.member_progress`, :mod:`~aiokcc.core.partition_progress`: the member's rule: who may pass, when to report
* :mod:`~aiokcc.core.report_builder`: builds a member's report
* :mod:`~aiokcc.core.leader`: the leader's rule: may the limit move, and to where; :mod:`~aiokcc.core.lookahead_choice`: how
  many boundaries are open, if the leader chooses that
* :mod:`~aiokcc.core.run`: what the group agreed on when it started
* :mod:`~aiokcc.core.paths`: the names of the nodes
* :mod:`~aiokcc.core.formatting`: durations, counts and names in messages; :mod:`~aiokcc.core.masking`: hides secrets in them

In a managed group:

* :mod:`~aiokcc.core.group_settings`, :mod:`~aiokcc.core.subscriptions`: a member's settings; what it may be assigned
* :mod:`~aiokcc.core.eligibility`: which members may be assigned which partitions
* :mod:`~aiokcc.core.assignors`: the assignors range and round robin; :mod:`~aiokcc.core.sticky`: even with the fewest moves;
  :mod:`~aiokcc.core.weighted`: even by the user's weights; :mod:`~aiokcc.core.colocation`: pipelines, each to one driver
* :mod:`~aiokcc.core.assignments`, :mod:`~aiokcc.core.rebalance`: the assignment of a topic; the machine that changes it
* :mod:`~aiokcc.core.committed_offset`: a committed offset and its text
* :mod:`~aiokcc.core.wheel`, :mod:`~aiokcc.core.delayed`: the timing wheel; operations that end by an event or at a deadline
"""
