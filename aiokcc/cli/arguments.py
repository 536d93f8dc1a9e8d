"""Defines and parses the arguments of all verbs; invalid ones raise UsageError with a hint."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from aiokcc.cli import help_texts as texts
from aiokcc.cli import offsets_arguments, replay_arguments
from aiokcc.cli.formatting import did_you_mean
from aiokcc.cli.loops import AUTO, LOOP_VARIABLE
from aiokcc.core.masking import mask_command, mask_url
from aiokcc.core.periods import format_duration, parse_duration, parse_period
from aiokcc.errors import UsageError

__all__ = ["ENVIRONMENT", "command", "make_parser", "parse"]

T = TypeVar("T")

ENVIRONMENT: Final = "AIOKCC_STORE"
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the help of an option between words, not inside one such as ``dead-letter``."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError with one line that names the problem, the nearest valid word, and the help."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nTry '{self.prog} --help'.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [] if action.choices is None else list(map(str, action.choices))
        if choices and value not in choices:
            text = did_you_mean(str(value), choices) or f"; expected {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"invalid choice: {mask_url(str(value))!r}{text}")

    def check_options(self, words: Sequence[str]) -> None:
        """Raise UsageError for the first option that the verb does not have.

        Otherwise argparse would report ``--period`` as missing to a user who typed ``--perod``.
        """
        for number, word in enumerate(words):
            if word == "--":
                return
            subparsers = self._subparsers_action()
            if subparsers is not None and word in subparsers.choices:
                subparsers.choices[word].check_options(words[number + 1 :])
                return
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                raise UsageError(
                    f"{self.prog.removeprefix('aiokcc ')} has no option {name}{self._nearest_option(name)}\n"
                    f"Try '{self.prog} --help'."
                )

    def _nearest_option(self, name: str) -> str:
        """Return a hint: the option with this name in the library (``--start`` is ``--from``), or the most similar one."""
        shown = {
            name: action for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS
        }
        keyword = name.removeprefix("--").replace("-", "_")
        meant = [option for option, action in shown.items() if action.dest == keyword and option.startswith("--")]
        return f"; did you mean {meant[0]}?" if meant else did_you_mean(name, shown, quote=str)

    def _subparsers_action(self) -> argparse._SubParsersAction[_Parser] | None:
        return next((a for a in self._actions if isinstance(a, argparse._SubParsersAction)), None)


def make_parser() -> _Parser:
    """Return the parser of the whole command line."""
    from aiokcc import __version__

    parser = _Parser(
        prog="aiokcc",
        description=texts.MAIN,
        epilog=texts.MAIN_END,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aiokcc {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks and logs")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, title="verbs", parser_class=_Parser)
    _replay(verbs)
    _status(verbs)
    _control(verbs)
    _offsets(verbs)
    _members(verbs)
    _local(verbs)
    return parser


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """Return the parsed arguments. Raises UsageError for invalid ones, SystemExit after help or version was shown."""
    parser = make_parser()
    words, url = _take_url(argv)
    parser.check_options(words)
    options, rest = parser.parse_known_args(words)
    options.words = list(argv)
    if rest:
        _refuse_unknown(options.verb, rest)
    if options.verb == "local":
        if url is not None:
            raise UsageError(f"{mask_url(url)}: aiokcc local takes no URL; the services print one when they are up")
    else:
        _choose_store(options, url, environment)
        if options.verb == "replay":
            options.end = options.end or "now"
            options.loop = options.loop or environment.get(LOOP_VARIABLE) or AUTO
        if options.verb in {"replay", "offsets"}:
            options.bootstrap_servers = options.bootstrap_servers or environment.get(replay_arguments.SERVERS)
    return options


def _take_url(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words without the URL, and the URL. It may stand anywhere, which argparse cannot express."""
    words: list[str] = []
    found: list[str] = []
    for n, word in enumerate(argv):
        takes = n > 0 and argv[n - 1] in {"--store", "--bootstrap-servers"}
        (found if _URL.match(word) and not takes else words).append(word)
    if len(found) > 1:
        raise UsageError(
            f"two stores are given, {mask_url(found[0])} and {mask_url(found[1])}; one command is for one group"
        )
    return words, found[0] if found else None


def _refuse_unknown(verb: str, rest: list[str]) -> NoReturn:
    word = mask_url(mask_command(rest)[0])
    if word.startswith("-"):
        raise UsageError(f"{verb} has no option {word.partition('=')[0]}\nTry 'aiokcc {verb} --help'.")
    raise UsageError(
        f"unexpected argument {word!r}; a store's URL looks like zk://127.0.0.1:2181/replay\nTry 'aiokcc {verb} --help'."
    )


def _choose_store(options: argparse.Namespace, url: str | None, environment: Mapping[str, str]) -> None:
    if url is not None and options.store is not None:
        raise UsageError("two stores are given, one with --store; one command is for one group")
    options.given_url = url or options.store
    options.store = options.given_url or environment.get(ENVIRONMENT)
    if not options.store and options.verb == "replay":
        raise UsageError(
            f"which store? Give --store zk://127.0.0.1:2181/replay, or set {ENVIRONMENT} to it; "
            f"a single process can use --store memory://once"
        )
    if not options.store and options.verb == "offsets" and options.group_id is not None:
        return  # offsets stored in Kafka need no store
    if not options.store:
        verb = f"offsets {options.action}" if options.verb == "offsets" else options.verb
        kept = "; or --group-id, for offsets that are stored in Kafka" if options.verb == "offsets" else ""
        raise UsageError(
            f"which group? Give its store's URL, as in `aiokcc {verb} zk://127.0.0.1:2181/replay`, "
            f"or set {ENVIRONMENT} to it{kept}"
        )
    if options.store.startswith("memory://") and options.verb != "replay":
        raise UsageError(
            f"{mask_url(options.store)} exists only inside the process that made it; call `await group.status()` there"
        )


def command(options: argparse.Namespace, *words: str) -> str:
    """Return a command line for the same group, ready to be copied; passwords in the URL are masked."""
    url = [] if options.given_url is None else mask_command([options.given_url])
    verb, *rest = words
    return shlex.join(["aiokcc", verb, *url, *rest])


def _argument_type(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a converter for argparse: it raises ArgumentTypeError, whose text argparse shows unchanged."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except UsageError as error:
            # No duration has a ':'. What has one may be a user and a password that were typed without a URL.
            raise argparse.ArgumentTypeError(str(error).replace(repr(text), repr(mask_url(text)))) from None

    return convert


def _duration(what: str) -> Callable[[str], int]:
    return _argument_type(lambda text: parse_period(text, what=what))


def _seconds(what: str) -> Callable[[str], float]:
    return _argument_type(lambda text: parse_duration(text, what=what) / 1000)


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
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    # The option exists before the verb too. SUPPRESS keeps this one from resetting it.
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
    brief = "run a handler over Kafka topics, all partitions in step in event time"
    parser = _add(verbs, "replay", texts.REPLAY_USAGE, brief, texts.REPLAY, texts.REPLAY_END)
    replay_arguments.add_options(parser)
    _add_store(parser)


def _status(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "which partition blocks, on which member, for how long"
    parser = _add(verbs, "status", texts.STATUS_USAGE, brief, texts.STATUS, texts.STATUS_END)
    _add_store(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="follow the status until the run ends")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object (docs/reference/command-line.md has its fields)"
    )
    parser.add_argument("--all", action="store_true", help="list every partition")
    parser.add_argument(
        "--stuck-after",
        type=_seconds("--stuck-after"),
        default=30.0,
        metavar="TIME",
        help="how long the limit may stand before the group counts as stuck; default: 30s",
    )


def _control(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "change the period while the group runs"
    parser = _add(verbs, "period", "aiokcc period [URL] PERIOD", brief, texts.PERIOD, texts.PERIOD_END)
    parser.add_argument("period", type=_duration("period"), metavar="PERIOD", help='such as "30s", "5m", "1h30m", "1d"')
    _add_store(parser)
    parser = _add(verbs, "hold", "aiokcc hold [URL]", "stop the limit where it is", texts.HOLD, texts.HOLD_END)
    _add_store(parser)
    brief = "open the gate for all members, for the rest of the run"
    parser = _add(verbs, "release", "aiokcc release [URL] [--yes]", brief, texts.RELEASE, texts.RELEASE_END)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_store(parser)


def _offsets(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "show, set, reset, export, import or migrate committed offsets"
    parser = _add(verbs, "offsets", "aiokcc offsets ACTION …", brief, texts.OFFSETS, texts.OFFSETS_END)
    offsets_arguments.add_actions(parser, _add, _add_store)


def _members(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "show the members of a managed group and their partitions"
    parser = _add(verbs, "members", "aiokcc members [URL] [--json]", brief, texts.MEMBERS, texts.MEMBERS_END)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    _add_store(parser)
    for verb, brief, text in (
        ("isolate", "take a member of a managed group out, without stopping it", texts.ISOLATE),
        ("rejoin", "let an isolated member take part again", texts.REJOIN),
    ):
        parser = _add(verbs, verb, f"aiokcc {verb} [URL] MEMBER", brief, text, texts.ISOLATE_END)
        parser.add_argument("member", metavar="MEMBER", help="its id, as `aiokcc members` shows it")
        _add_store(parser)


def _local(verbs: argparse._SubParsersAction[_Parser]) -> None:
    brief = "start a real ZooKeeper, Kafka or Spark on this machine"
    local = _add(verbs, "local", "aiokcc local SERVICE …", brief, texts.LOCAL, texts.LOCAL_END)
    services = local.add_subparsers(
        dest="service", metavar="SERVICE", required=True, title="services", parser_class=_Parser, prog="aiokcc local"
    )
    parser = _add(
        services,
        "zookeeper",
        texts.ZOOKEEPER_USAGE,
        "a ZooKeeper server, or an ensemble",
        texts.ZOOKEEPER,
        texts.ZOOKEEPER_END,
    )
    parser.add_argument("--servers", type=_number, default=1, metavar="N", help="1, or an ensemble of 3, 5 …")
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the first server; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep data and logs here; default: temporary")
    parser = _add(services, "kafka", texts.KAFKA_USAGE, "a Kafka broker", texts.KAFKA, texts.KAFKA_END)
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the broker; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep data and logs here; default: temporary")
    brief = "a Spark cluster: a master and its workers"
    parser = _add(services, "spark", texts.SPARK_USAGE, brief, texts.SPARK, texts.SPARK_END)
    parser.add_argument("--workers", type=_number, default=2, metavar="N", help="number of workers; default: 2")
    parser.add_argument("--cores", type=_number, default=1, metavar="N", help="of each worker; default: 1")
    parser.add_argument(
        "--memory", default="1g", metavar="SIZE", help="of each worker, such as 512m or 4g; default: 1g"
    )
    parser.add_argument("--port", type=_number, metavar="PORT", help="of the master; default: a free one")
    parser.add_argument("--data", metavar="DIR", help="keep logs and executors' directories here; default: temporary")
    _add(services, "up", "aiokcc local up", "a ZooKeeper and a Kafka", texts.UP, texts.UP_END)
