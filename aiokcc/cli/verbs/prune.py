"""``aiokcc prune``: deletes the groups whose run ended long ago."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from aiokcc.cli.argument_types import seconds
from aiokcc.cli.confirm import YES, ask
from aiokcc.cli.group_list import summaries
from aiokcc.cli.verb import Verb, argument
from aiokcc.core.formatting import count
from aiokcc.core.masking import mask_url
from aiokcc.core.periods import format_duration, format_time
from aiokcc.credentials import hide_secrets
from aiokcc.errors import AiokccError
from aiokcc.runtime.roots import delete_root

__all__ = ["VERB"]


def _confirm(options: argparse.Namespace) -> bool:
    if options.dry_run:
        return True
    where = mask_url(options.store.partition("?")[0])
    return ask(options, "prune", f"This deletes all runs under {where} that ended at least {_kept(options)} ago.")


def _kept(options: argparse.Namespace) -> str:
    return format_duration(round(options.keep_ended * 1000))


async def _run(options: argparse.Namespace) -> int:
    """Delete the groups whose run ended long enough ago. One that cannot be deleted does not stop the others."""
    horizon = (time.time() - options.keep_ended) * 1000
    failed = deleted = kept = 0
    for store, found in await summaries(options):
        if isinstance(found, AiokccError) or found.ended is None or found.ended > horizon or found.status.members:
            kept += 1
            continue
        if not options.dry_run:
            try:
                async with store.session(connect_timeout=options.timeout) as session:
                    await delete_root(store, session, version=found.run_version)
            except AiokccError as error:
                print(f"aiokcc: {hide_secrets(str(error))}", file=sys.stderr)
                failed += 1
                continue
        deleted += 1
        print(
            f"{'Would delete' if options.dry_run else 'Deleted'} {store.root}, which ended {format_time(found.ended)}."
        )
    verb = "would be deleted" if options.dry_run else "deleted"
    print(f"{count(deleted, 'run')} {verb}, {kept} kept{f', {failed} failed' if failed else ''}.")
    return 1 if failed else 0


VERB: Final = Verb(
    name="prune",
    brief="delete runs that ended long ago",
    usage="[URL] --keep-ended TIME [--dry-run] [--yes]",
    arguments=(
        argument(
            "--keep-ended",
            type=seconds("--keep-ended"),
            required=True,
            metavar="TIME",
            help="keep runs that ended less than this ago, such as 7d",
        ),
        argument("--dry-run", action="store_true", help="show what would be deleted, and delete nothing"),
        YES,
    ),
    confirm=_confirm,
    run=_run,
    description="""\
Delete the groups at and below a path whose run has ended, and ended at least
--keep-ended ago by the store's clock. Groups that have not ended, also those
that nobody takes part in, are kept: they can be resumed.
""",
    epilog="""\
examples:
  aiokcc prune zk://127.0.0.1:2181/team-a --keep-ended 7d --dry-run
  0 3 * * *  aiokcc prune --profile production --keep-ended 7d --yes     cron
""",
)
