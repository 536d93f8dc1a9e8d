"""Parses the command line, from the table of verbs; invalid arguments raise UsageError with a hint."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from aiokcc.cli.argument_types import seconds
from aiokcc.cli.configuration import CONFIG, PROFILE, Profile, load_profile
from aiokcc.cli.defaults import Default, find_defaults
from aiokcc.cli.logs import LEVELS, LOG_FORMATS, choose_logs
from aiokcc.cli.loops import AUTO, LOOP_VARIABLE
from aiokcc.cli.verb import KAFKA, SERVERS, STORE, StoreUse, Verb
from aiokcc.cli.verbs import VERBS
from aiokcc.core.formatting import did_you_mean
from aiokcc.core.masking import mask_command, mask_url
from aiokcc.errors import UsageError

__all__ = ["make_parser", "parse", "peek_value"]

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

_VARIABLES: Final = (("bootstrap_servers", SERVERS, None), ("loop", LOOP_VARIABLE, AUTO))
"""Options that an environment variable stands in for, and their defaults."""

_DESCRIPTION: Final = """\
Replay Kafka topics in step in event time; show and control a group that does.

the store:
  Give its URL anywhere after the verb, with --store, or in AIOKCC_STORE:

    aiokcc status zk://127.0.0.1:2181/replay
    export AIOKCC_STORE=zk://h1:2181,h2:2181,h3:2181/replay
    aiokcc status --watch

  or in a profile of aiokcc.toml, with TLS, credentials and defaults; `aiokcc
  config` shows what is in force, and from where.
"""
_EPILOG: Final = """\
exit codes:
  0    done
  1    failed: no server answers, no permission, no such group, no Java …
  2    invalid arguments; nothing was sent
  3    status: the group is stuck (see `aiokcc status --help`)
  130  ended by Ctrl-C        143  ended by SIGTERM

`aiokcc VERB --help` explains each verb with examples.
"""


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

    def find_verb(self, words: Sequence[str]) -> tuple[_Parser | None, int]:
        """Return the parser of the verb, or of its part, and the place of the words after it."""
        for number, word in enumerate(words):
            subparsers = self._subparsers_action()
            if subparsers is not None and word in subparsers.choices:
                found, place = subparsers.choices[word].find_verb(words[number + 1 :])
                return found, number + 1 + place
        return (None, 0) if self._subparsers_action() is not None else (self, 0)

    def all_verbs(self) -> list[_Parser]:
        """Return the parsers of all verbs and their parts."""
        subparsers = self._subparsers_action()
        return [self] if subparsers is None else [v for each in subparsers.choices.values() for v in each.all_verbs()]

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
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aiokcc {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks and logs")
    _add_log_options(parser, None)
    _add_verbs(parser, VERBS, "verb", "aiokcc")
    return parser


def _add_log_options(parser: _Parser, default: str | None) -> None:
    what = f"how stderr is written: {' or '.join(LOG_FORMATS)}, one object per line"
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=default, metavar="FORMAT", help=what)
    what = f"show logs from this level on: {', '.join(LEVELS)}; default: none, or info with --log-format"
    parser.add_argument("--log-level", choices=LEVELS, default=default, metavar="LEVEL", help=what)


def _add_verbs(parser: _Parser, verbs: Iterable[Verb], what: str, prog: str) -> None:
    below = parser.add_subparsers(
        dest=what, metavar=what.upper(), required=True, title=f"{what}s", parser_class=_Parser, prog=prog
    )
    for verb in verbs:
        added = below.add_parser(
            verb.name,
            help=verb.brief,
            usage=f"{prog} {verb.name} {verb.usage}".rstrip(),
            description=verb.description,
            epilog=verb.epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        # The option exists before the verb too. SUPPRESS keeps this one from resetting it.
        added.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        _add_log_options(added, argparse.SUPPRESS)
        for add in verb.arguments:
            add(added)
        if verb.parts:
            _add_verbs(added, verb.parts, verb.part, f"{prog} {verb.name}")
            continue
        added.set_defaults(selected=verb)
        if verb.store is not StoreUse.NONE:
            added.add_argument("--store", metavar="URL", help=f"the group's store; default: ${STORE}")
            what_ = "how long to wait for a server; default: 10s"
            added.add_argument("--timeout", type=seconds("--timeout"), default=10.0, metavar="TIME", help=what_)
            added.add_argument("--profile", metavar="NAME", help=f"of aiokcc.toml; default: ${PROFILE}")
            what_ = f"in place of aiokcc.toml here or in ~/.config/aiokcc; default: ${CONFIG}"
            added.add_argument("--config", metavar="FILE", help=what_)
            if "--kafka-config" not in added._option_string_actions:
                what_ = f"for kafka://: the client properties of its brokers; default: ${KAFKA}, or the profile's kafka"
                added.add_argument("--kafka-config", metavar="FILE", help=what_)


def parse(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """Return the parsed arguments; ``selected`` is the verb, or its part.

    Raises UsageError for invalid arguments, SystemExit after help or version was shown.
    """
    parser = make_parser()
    words, url = _take_url(argv)
    parser.check_options(words)
    profile, defaults, words = _add_defaults(parser, words, environment)
    try:
        options, rest = parser.parse_known_args(words)
    except UsageError as error:
        raise _with_origin(error, defaults) from None
    options.words, options.profile_in_force, options.defaults_in_force = list(argv), profile, defaults
    options.logs = choose_logs(options.log_format, options.log_level, verbose=options.verbose)
    if rest:
        _refuse_unknown(options.verb, rest)
    _choose_store(options, url, environment, profile)
    _choose_kafka(options, environment, profile)
    for name, variable, default in _VARIABLES:
        if name in options:
            setattr(options, name, getattr(options, name) or environment.get(variable) or default)
    return options


def _take_url(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words without the URL, and the URL. It may stand anywhere, which argparse cannot express."""
    words: list[str] = []
    found: list[str] = []
    for n, word in enumerate(argv):
        takes = n > 0 and argv[n - 1] in {"--store", "--bootstrap-servers", "--config", "--kafka-config"}
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


def _add_defaults(
    parser: _Parser, words: list[str], environment: Mapping[str, str]
) -> tuple[Profile | None, list[Default], list[str]]:
    """Return the profile, the defaults that it and the environment give, and the words with these defaults."""
    verb, place = parser.find_verb(words)
    if verb is None or {"-h", "--help", "--version"} & set(words) or "config" not in {a.dest for a in verb._actions}:
        return None, [], words
    profile = load_profile(peek_value(words, "--config"), peek_value(words, "--profile"), environment)
    names = [name.removeprefix("--") for each in parser.all_verbs() for name in each._option_string_actions]
    defaults = find_defaults(verb, words[place:], environment, profile, names)
    words = [*words[:place], *(word for default in defaults for word in default.words), *words[place:]]
    if verb.get_default("selected").store is StoreUse.SHOWN:  # it shows the defaults of all verbs
        found = (each for other in parser.all_verbs() for each in find_defaults(other, (), environment, profile, names))
        defaults = list({each.option: each for each in [*found, *defaults]}.values())
    return profile, defaults, words


def peek_value(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option before the words are parsed."""
    for number, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and number + 1 < len(words):
            return words[number + 1]
    return None


def _with_origin(error: UsageError, defaults: Iterable[Default]) -> UsageError:
    """Return the error with where the value comes from, if it was not typed."""
    for default in defaults:
        if f"argument {default.option}:" in str(error):
            return UsageError(f"{default.origin}: {error}")
    return error


def _choose_kafka(options: argparse.Namespace, environment: Mapping[str, str], profile: Profile | None) -> None:
    """Set where Kafka's client properties come from: the option, the environment, or the profile; never a mixture."""
    if "kafka_config" not in options:
        return
    for given, origin in (
        (options.kafka_config, "--kafka-config"),
        (environment.get(KAFKA), f"${KAFKA}"),
        (None if profile is None else profile.kafka, "" if profile is None else profile.origin),
    ):
        options.kafka, options.kafka_origin = given or None, origin
        if given:
            break


def _choose_store(
    options: argparse.Namespace, url: str | None, environment: Mapping[str, str], profile: Profile | None
) -> None:
    use = options.selected.store
    if use is StoreUse.NONE:
        if url is not None:
            raise UsageError(
                f"{mask_url(url)}: aiokcc {options.verb} takes no URL; the services print one when they are up"
            )
        options.store = None
        return
    if url is not None and options.store is not None:
        raise UsageError("two stores are given, one with --store; one command is for one group")
    options.given_url = url or options.store
    options.store_origin = "the command line" if options.given_url else f"${STORE}"
    options.store = options.given_url or environment.get(STORE)
    if profile is not None and options.store:
        options.store = profile.complete(options.store)
    elif profile is not None:
        options.store, options.store_origin = profile.store_url(), profile.origin
    if options.store:
        if options.store.startswith("memory://") and use in {StoreUse.GROUP, StoreUse.GROUP_OR_KAFKA}:
            raise UsageError(
                f"{mask_url(options.store)} exists only inside the process that made it; "
                f"call `await group.status()` there"
            )
    elif use is StoreUse.RUN:
        raise UsageError(
            f"which store? Give --store zk://127.0.0.1:2181/replay, or set {STORE} to it; "
            f"without a ZooKeeper, --store kafka; a single process can use --store memory://once"
        )
    elif use is StoreUse.GROUP or (use is StoreUse.GROUP_OR_KAFKA and options.group_id is None):
        verb = " ".join(dict.fromkeys((options.verb, options.selected.name)))
        or_kafka = "" if use is StoreUse.GROUP else "; or --group-id, for offsets that are stored in Kafka"
        raise UsageError(
            f"which group? Give its store's URL, as in `aiokcc {verb} zk://127.0.0.1:2181/replay`, "
            f"or set {STORE} to it{or_kafka}"
        )
