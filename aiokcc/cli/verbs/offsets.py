"""``aiokcc offsets``: shows committed offsets, and changes them between two runs."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiokcc.cli import offset_actions as actions
from aiokcc.cli.argument_types import name, storage, time_or, whole_number
from aiokcc.cli.kafka_options import KAFKA_ARGUMENTS, load_kafka
from aiokcc.cli.offset_storage import Sources, has_aiokafka, open_sources
from aiokcc.cli.verb import SERVERS, AddArgument, StoreUse, Verb, argument
from aiokcc.core.committed_offset import MAX_OFFSET
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import MAX_NUMBER
from aiokcc.errors import UsageError

__all__ = ["VERB"]

_WHERE: Final = "[URL] [--group-id ID]"
_BREAK: Final = "\n" + " " * 22
"""Continues a usage on the next line."""


def _check(options: argparse.Namespace, action: str) -> None:
    """Raise UsageError for arguments that are invalid whatever the store and Kafka hold."""
    load_kafka(options)
    servers = options.bootstrap_servers or ""
    shown = mask_url(servers)
    if "://" in servers or "@" in servers or shown != servers:
        raise UsageError(f"--bootstrap-servers {shown}: expected HOST:PORT, without a scheme and a user")
    needs_kafka = options.group_id is not None or action not in {"show", "export"}
    if (needs_kafka or options.consumer) and not has_aiokafka():
        raise UsageError(f"aiokcc offsets {action} needs aiokafka: pip install 'aiokcc[kafka]'")
    if options.consumer:
        from aiokcc.kafka.source_options import check_consumer

        check_consumer(dict(options.consumer))
    if needs_kafka and not servers:
        why = "offsets are checked against the logs" if options.group_id is None else "the offsets are stored in Kafka"
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it; {why}")
    if action == "migrate" and not (options.group_id and options.store):
        raise UsageError("migrate needs --group-id, for Kafka, and the store's URL")
    if action == "import" and options.file != "-" and not Path(options.file).is_file():
        raise UsageError(f"there is no file {options.file}; '-' is standard input")


_TOPICS: Final = argument("--topic", action="append", type=name, metavar="TOPIC", help="only this; may be repeated")
_WRITING: Final = (
    argument("--dry-run", action="store_true", help="show what would be written, and write nothing"),
    argument(
        "--force",
        action="store_true",
        help="write although a run has not ended: it resumes from its own cuts, and overwrites what is written",
    ),
)
_KAFKA: Final = (
    argument("--group-id", type=name, metavar="ID", help="the offsets stored in Kafka under this name"),
    *KAFKA_ARGUMENTS,
)


def _action(
    action: str,
    usage: str,
    brief: str,
    description: str,
    *examples: str,
    arguments: tuple[AddArgument, ...],
    do: Callable[[Sources], Awaitable[None]],
) -> Verb:
    async def run(options: argparse.Namespace) -> int:
        async with open_sources(options) as sources:
            await do(sources)
        return 0

    return Verb(
        name=action,
        brief=brief,
        usage=usage,
        arguments=(*arguments, *_KAFKA),
        check=lambda options: _check(options, action),
        run=run,
        store=StoreUse.GROUP_OR_KAFKA,
        description=description,
        epilog="examples:\n" + "".join(f"  aiokcc offsets {action} {example}\n" for example in examples),
    )


VERB: Final = Verb(
    name="offsets",
    brief="show, set, reset, export, import or migrate committed offsets",
    usage="ACTION …",
    description="""\
Show the offsets that replays have committed, and change them between two runs.

where they are stored:
  in the store   below its root, as offsets/TOPIC/PARTITION; give its URL:
                 aiokcc.replay(offset_storage="store")
  in Kafka       under a group's name: aiokcc.replay(group_id=…). Give
                 --group-id, and the store's URL too, so that a run that has
                 not ended is found.
""",
    epilog="""\
how they are used:
  A run resumes from its last cut and from its own commits. Offsets that
  somebody else has written never hide a record from it, so nothing here can
  harm a run; it would only overwrite what you write. That is why writing is
  refused while a run under the store's root has not ended. Offsets written
  here are used by a new run that starts at 'committed'.

examples:
  aiokcc offsets show zk://127.0.0.1:2181/replay
  aiokcc offsets show --group-id billing --bootstrap-servers 127.0.0.1:9092
  aiokcc offsets set orders 3 1200 --group-id billing
  aiokcc offsets reset 2026-01-01T00:00Z --topic orders
  aiokcc offsets export zk://127.0.0.1:2181/january |
      aiokcc offsets import - zk://127.0.0.1:2181/february
  aiokcc offsets migrate --to store --group-id billing \\
      zk://127.0.0.1:2181/february

`aiokcc offsets ACTION --help` explains each.
""",
    part="action",
    parts=(
        _action(
            "show",
            f"{_WHERE} [--topic TOPIC …] [--json]",
            "show offset, lag, time and author of each commit",
            """\
Show the committed offsets: topic, partition, offset, lag behind the end of the
log, time and author of the commit. The lag needs Kafka's address
(--bootstrap-servers) and pip install 'aiokcc[kafka]'.
""",
            "",
            "--topic orders",
            "--json | jq '.offsets[] | select(.lag > 1000)'",
            arguments=(
                _TOPICS,
                argument(
                    "--json",
                    action="store_true",
                    help="one JSON object (docs/reference/command-line.md has its fields)",
                ),
            ),
            do=actions.show_offsets,
        ),
        _action(
            "set",
            f"TOPIC PARTITION OFFSET {_WHERE}{_BREAK}[--dry-run] [--force]",
            "set the offset of one partition",
            """\
Set the offset of one partition: the next run that starts at 'committed' begins
there. It must lie in the partition's log.
""",
            "orders 3 1200",
            "orders 3 1200 --group-id billing --dry-run",
            arguments=(
                argument("topic", type=name, metavar="TOPIC"),
                argument("partition", type=whole_number(0, MAX_NUMBER, "a partition"), metavar="PARTITION"),
                argument("offset", type=whole_number(0, MAX_OFFSET, "an offset"), metavar="OFFSET"),
                *_WRITING,
            ),
            do=actions.set_offsets,
        ),
        _action(
            "reset",
            f"TO {_WHERE} [--topic TOPIC …]{_BREAK}[--dry-run] [--force]",
            "set offsets to a time, the earliest or the latest record",
            """\
Set the offsets of all partitions, or of some topics, to the first record at or
past a time, to the earliest record, or to the end of the log. Without --topic
these are the topics of the run under the store's root, and those that have
offsets already.
""",
            "earliest",
            "latest --topic orders --topic payments",
            "2026-01-01T00:00Z --dry-run",
            arguments=(
                argument(
                    "to",
                    type=time_or("earliest", "latest"),
                    metavar="TO",
                    help="a time such as 2026-01-31T00:00Z, milliseconds since the epoch, 'earliest' or 'latest'",
                ),
                _TOPICS,
                *_WRITING,
            ),
            do=actions.reset_offsets,
        ),
        _action(
            "export",
            f"{_WHERE} [--topic TOPIC …]{_BREAK}[--format json|csv]",
            "write offsets as JSON or CSV",
            """\
Write the committed offsets to standard output, as JSON or CSV; `aiokcc offsets
import` reads both.
""",
            "> offsets.json",
            "--format csv --group-id billing > offsets.csv",
            arguments=(
                _TOPICS,
                argument("--format", choices=("json", "csv"), default="json", help="default: json"),
            ),
            do=actions.export_offsets,
        ),
        _action(
            "import",
            f"FILE {_WHERE} [--dry-run] [--force]",
            "read offsets from such a file",
            """\
Set offsets from a file that `aiokcc offsets export` has written: JSON, or CSV
with the columns topic, partition and offset. All of it is checked before
anything is written. Partitions that are not in the file keep their offsets.
""",
            "offsets.json",
            "- < offsets.csv",
            arguments=(argument("file", metavar="FILE", help="'-' is standard input"), *_WRITING),
            do=actions.import_offsets,
        ),
        _action(
            "migrate",
            f"--to kafka|store --group-id ID [URL]{_BREAK}[--topic TOPIC …] [--dry-run] [--force]",
            "copy offsets from Kafka to the store, or back",
            """\
Copy offsets from Kafka to the store, or back: to change offset_storage= between
two runs. The source stays as it is. Repeating the command changes nothing.
""",
            "--to store --group-id billing",
            "--to kafka --group-id billing --dry-run",
            arguments=(
                argument(
                    "--to",
                    type=storage,
                    choices=("kafka", "store"),
                    required=True,
                    help="'store': from Kafka to the store; 'kafka': from the store to Kafka",
                ),
                _TOPICS,
                *_WRITING,
            ),
            do=actions.migrate_offsets,
        ),
    ),
)
