"""The arguments of ``aiokcc offsets``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from aiokcc.cli import help_texts as texts
from aiokcc.cli.replay_arguments import SERVERS, setting, storage
from aiokcc.core.committed_offset import MAX_OFFSET
from aiokcc.core.partitions import MAX_NUMBER
from aiokcc.core.periods import parse_time
from aiokcc.errors import UsageError

__all__ = ["add_actions"]

_BREAK: Final = "\n" + " " * 22
"""Continues a usage on the next line."""


def add_actions(parser: argparse.ArgumentParser, add: Callable[..., Any], add_store: Callable[[Any], None]) -> None:
    """Add all actions. ``add`` makes a subcommand, ``add_store`` gives it the options of the store."""
    actions = parser.add_subparsers(
        dest="action",
        metavar="ACTION",
        required=True,
        title="actions",
        parser_class=type(parser),
        prog="aiokcc offsets",
    )

    def action(name: str, words: str, brief: str, description: str, *examples: str) -> Any:
        ends = "examples:\n" + "\n".join(f"  aiokcc offsets {name} {example}" for example in examples) + "\n"
        one = add(actions, name, f"aiokcc offsets {name} {words}", brief, description, ends)
        one.add_argument("--group-id", type=_name, metavar="ID", help="the offsets stored in Kafka under this name")
        one.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help=f"Kafka; default: ${SERVERS}")
        what = "a setting of aiokafka's client, such as security_protocol=SASL_PLAINTEXT; may be repeated"
        one.add_argument("--consumer", action="append", type=setting, default=[], metavar="NAME=VALUE", help=what)
        add_store(one)
        return one

    where = "[URL] [--group-id ID]"
    show = action(
        "show",
        f"{where} [--topic TOPIC …] [--json]",
        "show offset, lag, time and author of each commit",
        texts.OFFSETS_SHOW,
        "",
        "--topic orders",
        "--json | jq '.offsets[] | select(.lag > 1000)'",
    )
    _add_topics(show)
    show.add_argument(
        "--json", action="store_true", help="one JSON object (docs/reference/command-line.md has its fields)"
    )
    one = action(
        "set",
        f"TOPIC PARTITION OFFSET {where}{_BREAK}[--dry-run] [--force]",
        "set the offset of one partition",
        texts.OFFSETS_SET,
        "orders 3 1200",
        "orders 3 1200 --group-id billing --dry-run",
    )
    one.add_argument("topic", type=_name, metavar="TOPIC")
    one.add_argument("partition", type=_whole("a partition", MAX_NUMBER), metavar="PARTITION")
    one.add_argument("offset", type=_whole("an offset", MAX_OFFSET), metavar="OFFSET")
    _add_writing(one)
    reset = action(
        "reset",
        f"TO {where} [--topic TOPIC …]{_BREAK}[--dry-run] [--force]",
        "set offsets to a time, the earliest or the latest record",
        texts.OFFSETS_RESET,
        "earliest",
        "latest --topic orders --topic payments",
        "2026-01-01T00:00Z --dry-run",
    )
    what = "a time such as 2026-01-31T00:00Z, milliseconds since the epoch, 'earliest' or 'latest'"
    reset.add_argument("to", type=_to, metavar="TO", help=what)
    _add_topics(reset)
    _add_writing(reset)
    export = action(
        "export",
        f"{where} [--topic TOPIC …]{_BREAK}[--format json|csv]",
        "write offsets as JSON or CSV",
        texts.OFFSETS_EXPORT,
        "> offsets.json",
        "--format csv --group-id billing > offsets.csv",
    )
    _add_topics(export)
    export.add_argument("--format", choices=("json", "csv"), default="json", help="default: json")
    bring = action(
        "import",
        f"FILE {where} [--dry-run] [--force]",
        "read offsets from such a file",
        texts.OFFSETS_IMPORT,
        "offsets.json",
        "- < offsets.csv",
    )
    bring.add_argument("file", metavar="FILE", help="'-' is standard input")
    _add_writing(bring)
    migrate = action(
        "migrate",
        f"--to kafka|store --group-id ID [URL]{_BREAK}[--topic TOPIC …] [--dry-run] [--force]",
        "copy offsets from Kafka to the store, or back",
        texts.OFFSETS_MIGRATE,
        "--to store --group-id billing",
        "--to kafka --group-id billing --dry-run",
    )
    what = "'store': from Kafka to the store; 'kafka': from the store to Kafka"
    migrate.add_argument("--to", type=storage, choices=("kafka", "store"), required=True, help=what)
    _add_topics(migrate)
    _add_writing(migrate)


def _add_topics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", action="append", type=_name, metavar="TOPIC", help="only this; may be repeated")


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    what = "write although a run has not ended: it resumes from its own cuts, and overwrites what is written"
    parser.add_argument("--force", action="store_true", help=what)


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; expected a name")
    return text


def _whole(what: str, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}; expected a whole number from 0 up")
        return int(text)

    return convert


def _to(text: str) -> int | str:
    if text in {"earliest", "latest"}:
        return text
    try:
        return parse_time(text, what="the time")
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error}; or 'earliest' or 'latest'") from None
