"""The tests of aiokcc.

Hypothesis runs by one of two profiles. ``ci``, the default, is the same every time. ``deep`` explores: choose it with
``HYPOTHESIS_PROFILE=deep`` and ``--timeout=0``, and ``HYPOTHESIS_EXAMPLES=20000`` for longer than its default.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "3000")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
