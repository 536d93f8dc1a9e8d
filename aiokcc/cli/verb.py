"""Defines a verb of the command line: its name, its help, its arguments and its function; and what several verbs share."""

from __future__ import annotations

import argparse
import enum
import getpass
import re
import shlex
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiokcc.cli.argument_types import seconds
from aiokcc.core.masking import mask_command
from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS, KafkaClient
from aiokcc.stores import Store, open_store

__all__ = [
    "KAFKA",
    "SERVERS",
    "STORE",
    "STUCK_AFTER",
    "AddArgument",
    "StoreUse",
    "Verb",
    "argument",
    "command",
    "open_existing",
    "operator_name",
]

STORE: Final = "AIOKCC_STORE"
"""The environment variable that stands in for --store."""
SERVERS: Final = "AIOKCC_BOOTSTRAP_SERVERS"
"""The environment variable that stands in for --bootstrap-servers."""
KAFKA: Final = "AIOKCC_KAFKA_CONFIG"
"""The environment variable that stands in for --kafka-config."""


class StoreUse(enum.Enum):
    """The ways in which a verb uses a store."""

    GROUP = enum.auto()
    """It needs the store of an existing group, so memory:// is refused."""
    GROUP_OR_KAFKA = enum.auto()
    """It needs the store of an existing group, or --group-id."""
    RUN = enum.auto()
    """It needs any store, also memory://, and may found a group there."""
    SHOWN = enum.auto()
    """It uses any store that is given, and needs none."""
    NONE = enum.auto()
    """It takes no URL."""


AddArgument = Callable[[argparse.ArgumentParser], object]
"""A function that adds one or more arguments to a parser."""


def argument(*names: str, **settings: Any) -> AddArgument:
    """Return a function that adds an argument to a parser, as ``parser.add_argument`` does."""
    return lambda parser: parser.add_argument(*names, **settings)


STUCK_AFTER: Final = argument(
    "--stuck-after",
    type=seconds("--stuck-after"),
    default=30.0,
    metavar="TIME",
    help="how long the limit may stand before the group counts as stuck; default: 30s",
)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb, or a part of one, such as ``show`` of ``offsets``. A verb with parts has no function of its own."""

    name: str
    brief: str
    """Its line in the list of verbs."""
    usage: str
    """The arguments, as they follow the name in the usage."""
    description: str
    epilog: str
    arguments: tuple[AddArgument, ...] = ()
    check: Callable[[argparse.Namespace], None] = lambda _: None
    """Raises UsageError for arguments that are invalid whatever the store and Kafka hold."""
    confirm: Callable[[argparse.Namespace], bool] = lambda _: True
    """Returns whether the user agrees. It runs before the event loop, so that Ctrl-C ends a question."""
    run: Callable[[argparse.Namespace], Awaitable[int]] | None = None
    """Returns the exit code."""
    store: StoreUse = StoreUse.GROUP
    parts: tuple[Verb, ...] = ()
    part: str = ""
    """The word for its parts, such as ``action``."""


def command(options: argparse.Namespace, *words: str) -> str:
    """Return a command line for the same group, ready to be copied; passwords in the URL are masked."""
    url = [] if options.given_url is None else mask_command([options.given_url])
    url += [
        word
        for name in ("config", "profile")
        if (value := getattr(options, name, None))
        for word in (f"--{name}", value)
    ]
    verb, *rest = words
    return shlex.join(["aiokcc", verb, *url, *rest])


def store_settings(options: argparse.Namespace, url: str | None = None) -> dict[str, Any]:
    """Return the options of a store in Kafka: how its brokers are reached, by the client properties and --consumer.

    A store of another kind has none: its URL says everything. Raises UsageError for properties that are invalid.
    """
    if not (url or options.store).startswith("kafka://"):
        return {}
    consumer = KafkaClient.load(options.kafka, options.kafka_origin).consumer
    given = {**consumer, **dict(getattr(options, "consumer", ()))}
    return {name: value for name, value in given.items() if name in CONNECTION_SETTINGS}


def open_existing(options: argparse.Namespace, url: str | None = None) -> Store:
    """Return the store of a group that exists already. A session there creates nothing if the URL is mistyped."""
    url = url or options.store
    only_existing = {"create": False} if url.startswith("kafka://") else {}
    return open_store(url, **only_existing, **store_settings(options, url))


def operator_name() -> str:
    """Return the user and the host, which are stored with what an operator writes."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no name in this container
        name = "operator"
    return re.sub(r"[^!-~]", "-", f"{name}@{socket.gethostname()}")[:200]
