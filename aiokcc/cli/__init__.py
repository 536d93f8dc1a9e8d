"""``aiokcc replay``, and the operator's ``status``, ``period``, ``hold``, ``release``, ``offsets``, ``local``.

Everything here is built on what any program can do with a store's session; the command line knows no secrets. What it shows is
made in three steps, so that each can be tested alone: :mod:`~aiokcc.cli.health` says in one sentence how the group stands,
:mod:`~aiokcc.cli.status_view` lays a status out as facts and tables, :mod:`~aiokcc.cli.render_text` prints that as plain text
and :mod:`~aiokcc.cli.render_rich` (with the ``cli`` extra, on a terminal) in colour. :mod:`~aiokcc.cli.worker_pool` starts a
replay's worker processes and reads what they report; each runs :mod:`~aiokcc.cli.worker`.
:mod:`~aiokcc.cli.bar` shows how far they are.
"""

from __future__ import annotations

from aiokcc.cli.app import main

__all__ = ["main"]
