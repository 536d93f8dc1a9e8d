"""The arguments of ``aiokcc replay``, and the keywords of :func:`aiokcc.replay` that they stand for."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from aiokcc.cli.loops import AUTO, LOOP_VARIABLE, LOOPS
from aiokcc.core.masking import is_secret, mask_url
from aiokcc.core.periods import parse_duration, parse_period, parse_time
from aiokcc.errors import UsageError

__all__ = ["SERVERS", "add_options", "as_keywords", "check_typed", "setting", "storage"]

SERVERS: Final = "AIOKCC_BOOTSTRAP_SERVERS"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add all options except --store and --timeout, which other verbs have too."""
    parser.add_argument("handler", metavar="MODULE:HANDLER", help="the function that gets each record")
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--topic", action="append", metavar="TOPIC", help="to replay; may be repeated")
    what = "or all topics whose whole name matches, such as 'orders-.*'; with --follow also those created later"
    topics.add_argument("--pattern", metavar="REGEX", help=what)
    parser.add_argument(
        "--period",
        type=_checked(parse_period, "the period"),
        required=True,
        metavar="TIME",
        help="such as 1m: the event time that all process before they wait for each other",
    )
    what = "a time, 'earliest' (the default), or 'committed' (see --offset-storage)"
    parser.add_argument("--from", dest="start", type=_start, default="earliest", metavar="TIME", help=what)
    end = parser.add_mutually_exclusive_group()
    what = "a time, or 'now' (the default): where the topics end when the run begins"
    end.add_argument("--to", dest="end", type=_end, metavar="TIME", help=what)
    end.add_argument("--follow", action="store_true", help="have no end: continue with new records")
    parser.add_argument(
        "--processes", type=_whole(1), default=1, metavar="N", help="the number of worker processes; default: 1"
    )
    what = (
        "who assigns partitions to processes: 'fixed' (the default): this command, once; or "
        "'managed': the group; start it on as many machines as you like, and stop or kill any of them"
    )
    parser.add_argument("--assignment", choices=("fixed", "managed"), default="fixed", metavar="HOW", help=what)
    what = "managed: the members' id; -1, -2 … are added where there are several processes. Default: host and process"
    parser.add_argument("--member", metavar="ID", help=what)
    what = (
        "managed: begin as soon as this many processes have joined, on all machines; default: --processes, if above 1"
    )
    parser.add_argument("--expect", type=_whole(1), metavar="N", help=what)
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help=f"Kafka; default: ${SERVERS}")
    parser.add_argument("--group-id", metavar="ID", help="commit offsets to Kafka under this name as periods close")
    what = "where offsets are committed: kafka (the default, with --group-id) or store (in the store)"
    parser.add_argument(
        "--offset-storage", type=storage, choices=("kafka", "store"), default="kafka", metavar="WHERE", help=what
    )
    more = parser.add_argument_group("processing")
    more.add_argument("--batches", action="store_true", help="the handler gets lists: of one partition and one period")
    what = "let partitions run up to N periods ahead of the slowest; default: 0"
    more.add_argument("--lookahead", type=_whole(0), default=0, metavar="N", help=what)
    what = (
        "with --follow, once at the present: 'follow' the clock (the default), 'release' the gate, or a longer period"
    )
    more.add_argument("--caught-up", type=_caught_up, default="follow", metavar="WHAT", help=what)
    what = "a function of a record that returns its event time in milliseconds; default: Kafka's timestamp"
    more.add_argument("--timestamp", metavar="MODULE:FUNCTION", help=what)
    what = f"the event loop of the workers: {', '.join(LOOPS)}; default: ${LOOP_VARIABLE}, or {AUTO}: uvloop if it is installed"
    more.add_argument("--loop", choices=LOOPS, metavar="LOOP", help=what)
    faults = parser.add_argument_group("exceptions")
    what = "how far a record may lie behind an earlier one of its partition; for all, or TOPIC=TIME for each"
    faults.add_argument("--lateness", action="append", default=[], metavar="TIME", help=what)
    _choice(faults, "--late", "a record later than that, whose period has closed", "deliver", "drop", "dead-letter")
    _choice(faults, "--poison", "a record without a usable timestamp", "raise", "skip", "cap", "dead-letter")
    _choice(faults, "--on-error", "a record whose handler raised, after all --retries", "raise", "dead-letter")
    faults.add_argument(
        "--retries",
        type=_whole(0),
        default=0,
        metavar="N",
        help="how often a handler that raised is called again; default: 0",
    )
    what = "a function of (record, reason), for the policies that say dead-letter"
    faults.add_argument("--dead-letter", metavar="MODULE:FUNCTION", help=what)
    faults.add_argument(
        "--isolation-level",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help=argparse.SUPPRESS,
    )
    what = "a setting of aiokafka's consumer, such as security_protocol=SASL_PLAINTEXT; may be repeated"
    faults.add_argument("--consumer", action="append", type=setting, default=[], metavar="NAME=VALUE", help=what)


def as_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of :func:`aiokcc.replay`, except topics and functions, as data that JSON can hold."""
    return {
        "pattern": options.pattern,
        "bootstrap_servers": options.bootstrap_servers,
        "store": options.store,
        "period": options.period,
        "start": options.start,
        "end": None if options.follow else options.end,
        "group_id": options.group_id,
        "offset_storage": options.offset_storage,
        "lateness": _lateness(options.lateness),
        "late": options.late,
        "poison": options.poison,
        "on_error": options.on_error,
        "retries": options.retries,
        "lookahead": options.lookahead,
        "caught_up": options.caught_up,
        "isolation_level": options.isolation_level,
        "connect_timeout": options.timeout,
        **_managed(options),
        **dict(options.consumer),
    }


def _managed(options: argparse.Namespace) -> dict[str, Any]:
    if options.assignment != "managed":
        unused = [f"--{name}" for name in ("member", "expect") if getattr(options, name) is not None]
        if unused:
            raise UsageError(f"{' and '.join(unused)} can only be used with --assignment managed")
        return {"assignment": "fixed"}
    expect = options.expect or (options.processes if options.processes > 1 else None)
    return {"assignment": "managed", "expect": expect}


def member_name(options: argparse.Namespace, number: int) -> str:
    """Return the member id of the worker with this number; numbers start at 1."""
    if options.assignment != "managed":
        return f"worker-{number}"
    if options.member is None:
        host = re.sub("[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
        return f"{host}-{os.getpid()}-{number}"
    return options.member if options.processes == 1 else f"{options.member}-{number}"


def _choice(group: argparse._ArgumentGroup, name: str, when: str, *choices: str) -> None:
    help_ = f"{when}: {', '.join(choices)}; default: {choices[0]}"
    group.add_argument(name, choices=choices, default=choices[0], metavar="WHAT", help=help_)


def storage(text: str) -> str:
    """Return the name of an offset storage as it was typed. Raises ArgumentTypeError for the former name of the store."""
    if text == "zookeeper":
        raise argparse.ArgumentTypeError("'zookeeper' is now 'store', which names any store; write 'store'")
    return text


def _checked(read: Callable[..., Any], what: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text, what=what)
        except UsageError as error:
            # No duration has a ':'. What has one may be a user and a password that were typed without a URL.
            raise argparse.ArgumentTypeError(str(error).replace(repr(text), repr(mask_url(text)))) from None

    return convert


def _time(text: str, what: str, *words: str) -> int | str:
    if text in words:
        return text
    try:
        return parse_time(text, what=what)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error}; or {' or '.join(map(repr, words))}") from None


def _start(text: str) -> int | str:
    return _time(text, "the time", "earliest", "committed")


def _end(text: str) -> int | str:
    return _time(text, "the time", "now")


def _caught_up(text: str) -> int | str:
    return text if text in {"follow", "release"} else int(_checked(parse_period, "the period")(text))


def _whole(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
        return int(text)

    return convert


def setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value is JSON or text; ``env:NAME`` and ``file:PATH`` say where to read it; a secret is text.

    Errors show only the name, because the value may be a secret.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        shown = re.match(r"[\w.-]*", text)
        raise argparse.ArgumentTypeError(f"{shown[0] if shown else ''!r} is not a setting; expected NAME=VALUE")
    place, colon, where = value.partition(":")
    if colon and place == "env":
        if where not in os.environ:
            raise argparse.ArgumentTypeError(f"{name}: the environment variable {where} is not set")
        return name, os.environ[where]
    if colon and place == "file":
        try:
            return name, Path(where).read_text().rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise argparse.ArgumentTypeError(f"{name}: the file {where} cannot be read: {error}") from None
    if is_secret(name):
        return name, value
    try:
        return name, json.loads(value)  # numbers, true, false, null
    except ValueError:
        return name, value


def check_typed(settings: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError for TLS: its context is an object, which --consumer cannot give."""
    given = dict(settings)
    if given.get("security_protocol") in {"SSL", "SASL_SSL"} or "ssl_context" in given:
        raise UsageError(
            "TLS to Kafka needs ssl_context, an object that cannot be typed on the command line. In a program of your own, "
            "call aiokcc.replay(..., security_protocol='SSL', ssl_context=aiokafka.helpers.create_ssl_context(cafile=...)); "
            "or reach Kafka through a listener without TLS"
        )


def _lateness(given: list[str]) -> int | dict[str, int] | None:
    """Return one bound for all topics, or one for each topic that is named; None if there is none."""
    by_topic: dict[str, int] = {}
    for text in given:
        topic, equals, bound = text.rpartition("=")
        if not equals and len(given) > 1:
            raise UsageError("--lateness is given for all topics and again; write TOPIC=TIME for each instead")
        length = parse_duration(bound, what="--lateness", least=0)
        if not equals:
            return length
        by_topic[topic] = length
    return by_topic or None
