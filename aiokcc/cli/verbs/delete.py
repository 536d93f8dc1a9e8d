"""``aiokcc delete``: deletes a group that nobody takes part in."""

from __future__ import annotations

import argparse
import contextlib
from typing import Final

from aiokcc.cli.confirm import YES, ask
from aiokcc.cli.verb import Verb, open_existing
from aiokcc.core.formatting import count, join_names
from aiokcc.core.masking import mask_url
from aiokcc.errors import AiokccError
from aiokcc.runtime.children import list_children
from aiokcc.runtime.roots import delete_root

__all__ = ["VERB"]


def _confirm(options: argparse.Namespace) -> bool:
    """Ask the user. Raises UsageError without --yes if stdin is no terminal."""
    where = mask_url(options.store.partition("?")[0])
    return ask(options, "delete", f"This deletes {where}: the run, its cuts, committed offsets and pipelines.")


async def _run(options: argparse.Namespace) -> int:
    """Delete the group. Raises UsageError if it is alive."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        number = await delete_root(store, session)
        others: tuple[str, ...] = ()
        with contextlib.suppress(AiokccError):  # the group is deleted all the same
            others = await list_children(session, "")
    kept = f" What does not belong to the group stays below it: {join_names(sorted(others))}." if others else ""
    print(f"Deleted {store.root}: {count(number, 'node')}.{kept}")
    return 0


VERB: Final = Verb(
    name="delete",
    brief="delete a group that nobody takes part in",
    usage="[URL] [--yes]",
    arguments=(YES,),
    confirm=_confirm,
    run=_run,
    description="""\
Delete a group: its run, its cuts, the offsets that are committed in the store,
and the records of its Spark pipelines. Refused while anybody is alive in it,
also if somebody joins at this moment. Results of sinks, offsets in Kafka, and
what others keep below the root stay. This cannot be undone.
""",
    epilog="""\
examples:
  aiokcc delete zk://127.0.0.1:2181/january          asks first
  aiokcc delete zk://127.0.0.1:2181/january --yes    for scripts
""",
)
