"""What may be typed, and the help that teaches it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar

from aiokcc.cli import offsets_arguments, replay_arguments
from aiokcc.core.periods import format_duration, parse_duration
from aiokcc.errors import UsageError

__all__ = ["ENVIRONMENT", "command", "parse"]

T = TypeVar("T")

ENVIRONMENT: Final = "AIOKCC_STORE"
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_MAIN: Final = """\
Replay Kafka topics in step in event time; look at a group that does, and steer it.

the store:
  Give its URL anywhere after the verb, or with --store, or once and for all in AIOKCC_STORE:

    aiokcc status zk://127.0.0.1:2181/replay
    export AIOKCC_STORE=zk://h1:2181,h2:2181,h3:2181/replay
    aiokcc status --watch
"""
_MAIN_END: Final = """\
exit codes:
  0    done
  1    it could not be done: no server answers, no permission, no such group, no Java …
  2    the command was not understood; nothing was sent
  3    status: the group is stuck (see `aiokcc status --help`)
  130  ended by Ctrl-C        143  ended by SIGTERM

`aiokcc VERB --help` explains each verb with examples.
"""
_STATUS: Final = """\
Show how a group stands: first of all which partition blocks, on which member, for how long.
"""
_STATUS_END: Final = """\
examples:
  aiokcc status zk://127.0.0.1:2181/replay
  aiokcc status --watch                      follow it, as the store tells; ends when the run ends
  aiokcc status --all                        every partition, however many there are
  aiokcc status --json | jq -r .limit_time   one object; with --watch one per line
  aiokcc status --stuck-after 5m || page-me  for a cron job

exit codes:
  0  the group moves, waits for new records, is on hold, was released, or has ended
  3  the group is stuck: the limit has stood for longer than --stuck-after because of a partition that somebody still works
     on or that is in nobody's hands; or a node cannot be read (then at once)

words:
  limit    records before it are processed; nobody gets one at or past it
  waiting  the partition has reached the limit and waits for the others
  running  it still has records before the limit: the others wait for it
  idle     its log holds no more records at present
"""
_PERIOD: Final = """\
Change the period for all members while they run; from the next boundary on. It also ends a hold.
"""
_PERIOD_END: Final = """\
examples:
  aiokcc period 5m
  aiokcc period 1h30m zk://127.0.0.1:2181/replay
  aiokcc period 500ms
"""
_HOLD: Final = """\
Keep the limit where it is. Once this has returned the limit does not move, whoever leads, until a period is set again.
Records before the limit are still processed.
"""
_HOLD_END: Final = """\
examples:
  aiokcc hold
  aiokcc period 1m        go on
"""
_RELEASE: Final = """\
Open the gate for all members: from then on every record passes, and partitions are not kept in step any more.
This is final for the run; to gate again, start a new one under another root.
"""
_RELEASE_END: Final = """\
examples:
  aiokcc release          asks first
  aiokcc release --yes    for scripts
"""
_MEMBERS: Final = """\
Show who is in a managed group: what each member may be given, what it has been given, and what it runs.
"""
_MEMBERS_END: Final = """\
examples:
  aiokcc members zk://127.0.0.1:2181/replay
  aiokcc members --json | jq -r '.workers[] | select(.isolated) | .name'
"""
_ISOLATE: Final = """\
Set a member of a managed group apart: it finishes the records it has in hand, commits, and gives its partitions to the others.
It stays connected and is given nothing more until `aiokcc rejoin`. A member that does not answer keeps what it has until it
does, or until its session ends: nothing is ever run by two.
"""
_ISOLATE_END: Final = """\
examples:
  aiokcc members
  aiokcc isolate machine-7-4711-1
  aiokcc rejoin machine-7-4711-1
"""
_REJOIN: Final = """\
Let an isolated member take part again. It is given its share with the next rebalance, about a second later.
"""
_LOCAL: Final = """\
Start real services on this machine (127.0.0.1 only), for trials and tests. Needs: pip install 'aiokcc[local]'
"""
_LOCAL_END: Final = """\
examples:
  aiokcc local up
  aiokcc local zookeeper --port 2181
  aiokcc local kafka --port 9092
  aiokcc local spark --workers 2
"""
_ZOOKEEPER: Final = """\
Start a real ZooKeeper on 127.0.0.1 and keep it until Ctrl-C. Its data are temporary unless --data says where to keep them.
"""
_ZOOKEEPER_END: Final = """\
examples:
  aiokcc local zookeeper
  aiokcc local zookeeper --port 2181
  aiokcc local zookeeper --servers 3 --data ./zookeeper
"""
_KAFKA: Final = """\
Start a real Kafka broker on 127.0.0.1 and keep it until Ctrl-C. Its data are temporary unless --data says where to keep them.
The first time it fetches Kafka from Maven Central, 44 MB, into the user's cache (AIOKCC_CACHE says where that is).
"""
_KAFKA_END: Final = """\
examples:
  aiokcc local kafka
  aiokcc local kafka --port 9092 --data ./kafka
"""
_SPARK: Final = """\
Start a real Spark cluster on 127.0.0.1, a standalone master and its workers, and keep it until Ctrl-C.
The first time it fetches Spark's Kafka connector from Maven Central, 10 MB, into the user's cache (AIOKCC_CACHE says where).
"""
_SPARK_END: Final = """\
examples:
  aiokcc local spark
  aiokcc local spark --workers 4 --cores 2 --memory 4g
  aiokcc local spark --port 7077 --data ./spark
"""
_UP: Final = """\
Start a ZooKeeper and a Kafka broker on 127.0.0.1 and keep them until Ctrl-C. Their data are temporary.
The first time it fetches Kafka from Maven Central, 44 MB, into the user's cache (AIOKCC_CACHE says where that is).
"""
_UP_END: Final = """\
examples:
  aiokcc local up
"""


class _Parser(argparse.ArgumentParser):
    """Complains in one line, and says where the help is."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nTry '{self.prog} --help'.")


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """The verb and what it needs. UsageError for what cannot be understood; SystemExit after help or version."""
    from aiokcc import __version__

    parser = _Parser(
        prog="aiokcc",
        description=_MAIN,
        epilog=_MAIN_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aiokcc {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks, and what the client logs")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs", parser_class=_Parser)
    _replay(verbs)
    _status(verbs)
    _steering(verbs)
    _offsets(verbs)
    _members(verbs)
    _local(verbs)
    words, url = _take_url(argv)
    options, rest = parser.parse_known_args(words)
    options.words = list(argv)
    if rest:
        _unknown(options.verb, rest)
    if options.verb == "local":
        if url is not None:
            raise UsageError(f"{url}: local services have no URL yet; they print one when they are up")
    else:
        _choose_store(options, url, environment)
        if options.verb == "replay":
            options.end = options.end or "now"
        if options.verb in {"replay", "offsets"}:
            options.bootstrap_servers = options.bootstrap_servers or environment.get(replay_arguments.SERVERS)
    return options


def _take_url(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Words without the URL, and the URL: it may stand anywhere, which argparse cannot express."""
    words: list[str] = []
    found: list[str] = []
    for n, word in enumerate(argv):
        takes = n > 0 and argv[n - 1] in {"--store", "--bootstrap-servers"}
        (found if _URL.match(word) and not takes else words).append(word)
    if len(found) > 1:
        raise UsageError(
            f"two stores are given, {_hidden(found[0])} and {_hidden(found[1])}; one command is for one group"
        )
    return words, found[0] if found else None


def _unknown(verb: str, rest: list[str]) -> NoReturn:
    word = rest[0]
    if word.startswith("-"):
        raise UsageError(f"{verb} has no option {word}\nTry 'aiokcc {verb} --help'.")
    raise UsageError(
        f"{word!r} is one word too many; a store's URL looks like zk://127.0.0.1:2181/replay\nTry 'aiokcc {verb} --help'."
    )


def _choose_store(options: argparse.Namespace, url: str | None, environment: Mapping[str, str]) -> None:
    if url is not None and options.store is not None:
        raise UsageError("two stores are given, one with --store; one command is for one group")
    options.said_url = url or options.store
    options.store = options.said_url or environment.get(ENVIRONMENT)
    if not options.store and options.verb == "replay":
        raise UsageError(
            f"where do the processes meet? Give --store zk://127.0.0.1:2181/replay, or set {ENVIRONMENT} to it; "
            f"one process alone can do with --store memory://once"
        )
    if not options.store and options.verb == "offsets" and options.group_id is not None:
        return  # those are Kafka's
    if not options.store:
        verb = f"offsets {options.action}" if options.verb == "offsets" else options.verb
        kept = "; or --group-id, for those that Kafka keeps" if options.verb == "offsets" else ""
        raise UsageError(
            f"which group? Give its store's URL, as in `aiokcc {verb} zk://127.0.0.1:2181/replay`, "
            f"or set {ENVIRONMENT} to it{kept}"
        )
    if options.store.startswith("memory://") and options.verb != "replay":
        raise UsageError(
            f"{options.store} lives inside the process that made it, where no other can look; "
            f"call `await coordinator.status()` there"
        )


def command(options: argparse.Namespace, *words: str) -> str:
    """A command line for the same group, to be copied; without a password that stood in the URL."""
    url = [] if options.said_url is None else [re.sub(r"//.*@", "//USER:PASSWORD@", options.said_url)]
    verb, *rest = words
    return shlex.join(["aiokcc", verb, *url, *rest])


def _hidden(url: str) -> str:
    return re.sub(r"//.*@", "//***@", url)


def _typed(read: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which shows the text of this one kind of error as it is."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _duration(what: str) -> Callable[[str], int]:
    return _typed(lambda text: parse_duration(text, what=what))


def _seconds(what: str) -> Callable[[str], float]:
    return _typed(lambda text: parse_duration(text, what=what) / 1000)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _add(
    verbs: argparse._SubParsersAction[_Parser], name: str, usage: str, brief: str, description: str, epilog: str
) -> _Parser:
    parser = verbs.add_parser(
        name,
        help=brief,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # The same option stands before the verb too: without a default here, this one does not undo that one.
    parser.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    return parser


def _add_store(parser: _Parser) -> None:
    parser.add_argument("--store", metavar="URL", help=f"the group's store; default: ${ENVIRONMENT}")
    parser.add_argument(
        "--timeout",
        type=_seconds("--timeout"),
        default=10.0,
        metavar="TIME",
        help=f"how long to wait for a server; default: {format_duration(10_000)}",
    )


def _replay(verbs: argparse._SubParsersAction[_Parser]) -> None:
    texts = (replay_arguments.USAGE, replay_arguments.BRIEF, replay_arguments.DESCRIPTION, replay_arguments.END)
    parser = _add(verbs, "replay", *texts)
    replay_arguments.add_options(parser)
    _add_store(parser)


def _status(verbs: argparse._SubParsersAction[_Parser]) -> None:
    usage = "aiokcc status [URL] [--watch] [--json] [--all] [--stuck-after TIME]"
    parser = _add(verbs, "status", usage, "which partition blocks, on which member, for how long", _STATUS, _STATUS_END)
    _add_store(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="follow it, woken by the store's watches")
    parser.add_argument("--json", action="store_true", help="one JSON object (docs/command-line.md has its fields)")
    parser.add_argument("--all", action="store_true", help="list every partition")
    parser.add_argument(
        "--stuck-after",
        type=_seconds("--stuck-after"),
        default=30.0,
        metavar="TIME",
        help="how long the limit may stand before that counts as stuck; default: 30s",
    )


def _steering(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "change the period while the group runs"
    parser = _add(verbs, "period", "aiokcc period [URL] PERIOD", brief, _PERIOD, _PERIOD_END)
    parser.add_argument("period", type=_duration("period"), metavar="PERIOD", help='such as "30s", "5m", "1h30m", "1d"')
    _add_store(parser)
    parser = _add(verbs, "hold", "aiokcc hold [URL]", "keep the limit where it is", _HOLD, _HOLD_END)
    _add_store(parser)
    brief = "open the gate for all, for good"
    parser = _add(verbs, "release", "aiokcc release [URL] [--yes]", brief, _RELEASE, _RELEASE_END)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_store(parser)


def _offsets(verbs: argparse._SubParsersAction[_Parser]) -> None:
    texts = (offsets_arguments.USAGE, offsets_arguments.BRIEF, offsets_arguments.DESCRIPTION, offsets_arguments.END)
    offsets_arguments.add_actions(_add(verbs, "offsets", *texts), _add, _add_store)


def _members(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "who is in a managed group, and who runs what"
    parser = _add(verbs, "members", "aiokcc members [URL] [--json]", brief, _MEMBERS, _MEMBERS_END)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _add_store(parser)
    for verb, brief, text in (
        ("isolate", "take a member of a managed group out, without stopping it", _ISOLATE),
        ("rejoin", "let an isolated member take part again", _REJOIN),
    ):
        parser = _add(verbs, verb, f"aiokcc {verb} [URL] MEMBER", brief, text, _ISOLATE_END)
        parser.add_argument("member", metavar="MEMBER", help="its id, as `aiokcc members` shows it")
        _add_store(parser)


def _local(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "start a real ZooKeeper, Kafka or Spark on this machine"
    local = _add(verbs, "local", "aiokcc local SERVICE …", brief, _LOCAL, _LOCAL_END)
    services = local.add_subparsers(
        dest="service", metavar="SERVICE", required=True, title="services", parser_class=_Parser
    )
    usage = "aiokcc local zookeeper [--servers N] [--port PORT] [--data DIR]"
    parser = _add(services, "zookeeper", usage, "a ZooKeeper server, or an ensemble", _ZOOKEEPER, _ZOOKEEPER_END)
    parser.add_argument("--servers", type=_number, default=1, metavar="N", help="1, or an ensemble of 3, 5 …")
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the first server; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep data and logs here; default: temporary")
    usage = "aiokcc local kafka [--port PORT] [--data DIR]"
    parser = _add(services, "kafka", usage, "a Kafka broker", _KAFKA, _KAFKA_END)
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the broker; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep data and logs here; default: temporary")
    usage = "aiokcc local spark [--workers N] [--cores N] [--memory SIZE] [--port PORT] [--data DIR]"
    parser = _add(services, "spark", usage, "a Spark cluster: a master and its workers", _SPARK, _SPARK_END)
    parser.add_argument("--workers", type=_number, default=2, metavar="N", help="how many; default: 2")
    parser.add_argument("--cores", type=_number, default=1, metavar="N", help="of each worker; default: 1")
    parser.add_argument(
        "--memory", default="1g", metavar="SIZE", help="of each worker, such as 512m or 4g; default: 1g"
    )
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the master; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep logs and executors' directories here; default: temporary")
    _add(services, "up", "aiokcc local up", "a ZooKeeper and a Kafka", _UP, _UP_END)
