"""The program ``aiokcc``: ``replay``, and the operator's verbs.

The command line uses only what any program can use: a session of the store, and the functions of the package. Each verb is a
module of :mod:`~aiokcc.cli.verbs`. What a command shows is a view (:mod:`~aiokcc.views.model`), and :mod:`~aiokcc.cli.render`
shows it. :mod:`~aiokcc.cli.worker_pool` starts the worker processes of a replay, each of which runs :mod:`~aiokcc.cli.worker`;
:mod:`~aiokcc.cli.monitor` collects their reports.
"""

from __future__ import annotations

from aiokcc.cli.app import main

__all__ = ["main"]
