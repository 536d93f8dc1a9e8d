"""``aiokcc replay``, and the operator's ``status``, ``period``, ``hold``, ``release``, ``offsets``, ``local``.

The command line uses only what any program can use: a session of the store, and the public functions. It shows a status in
three steps, each tested alone: :mod:`~aiokcc.cli.health` assesses the group in one sentence, :mod:`~aiokcc.cli.status_view`
arranges a status as facts and tables, and :mod:`~aiokcc.cli.render_text` prints that as plain text, or
:mod:`~aiokcc.cli.render_rich` (with the ``cli`` extra, on a terminal) in colour. :mod:`~aiokcc.cli.worker_pool` starts the
worker processes of a replay and reads their reports; each process runs :mod:`~aiokcc.cli.worker`.
:mod:`~aiokcc.cli.monitor` collects the reports, and :mod:`~aiokcc.cli.bar` shows the progress.
"""

from __future__ import annotations

from aiokcc.cli.app import main

__all__ = ["main"]
