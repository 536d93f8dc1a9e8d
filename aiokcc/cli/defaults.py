"""Finds the options that were not typed, in environment variables and in the profile, and gives them as words to the parser.

So a default goes through the same checks as a typed option. ``--period`` is also ``AIOKCC_PERIOD``, and ``period`` in the
profile's ``defaults``. What is typed weighs more than the environment, and the environment more than the profile. Two kinds are
left out: a flag is no environment variable, because a forgotten variable would change every later command; and the store and
Kafka, which have settings of their own, are chosen elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokcc.cli.configuration import Profile
from aiokcc.core.formatting import did_you_mean
from aiokcc.errors import UsageError

__all__ = ["Default", "find_defaults", "typed_options"]

_ELSEWHERE: Final = frozenset(
    {"help", "verbose", "store", "bootstrap-servers", "kafka-config", "config", "profile", "loop"}
)
_NO_VARIABLE: Final = frozenset({"yes", "force"})


@dataclass(frozen=True, slots=True)
class Default:
    """An option that was not typed: the words that give it, and where they come from."""

    option: str
    words: tuple[str, ...]
    origin: str


def typed_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """Return the names of the options among the words of a verb."""
    typed: set[str] = set()
    for word in words:
        if word == "--":
            break
        action = parser._option_string_actions.get(word.partition("=")[0])
        if action is not None:
            typed.add(action.dest)
    return typed


def find_defaults(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    environment: Mapping[str, str],
    profile: Profile | None,
    all_options: Iterable[str],
) -> list[Default]:
    """Return the defaults for a verb's parser. Raises UsageError for a default in the profile that no verb has."""
    chosen = typed_options(parser, words)
    found: list[Default] = []
    profile_defaults = {} if profile is None else profile.defaults
    if profile is not None:
        _check_known(profile, set(all_options))
    for action in parser._actions:
        option = next((name for name in action.option_strings if name.startswith("--")), None)
        name = "" if option is None else option.removeprefix("--")
        if option is None or name in _ELSEWHERE or action.dest in chosen or _excluded(parser, action, chosen):
            continue
        variable = f"AIOKCC_{name.upper().replace('-', '_')}"
        if action.nargs != 0 and environment.get(variable) and name not in _NO_VARIABLE:
            found.append(Default(option, (f"{option}={environment[variable]}",), f"${variable}"))
        elif profile is not None and name in profile_defaults:
            found.append(Default(option, _as_words(option, action, profile_defaults[name], profile), profile.origin))
        else:
            continue
        chosen.add(action.dest)
    return found


def _excluded(parser: argparse.ArgumentParser, action: argparse.Action, chosen: set[str]) -> bool:
    """Return whether another option is chosen that cannot go with this one, as ``--follow`` cannot with ``--to``."""
    groups = (group._group_actions for group in parser._mutually_exclusive_groups if action in group._group_actions)
    return any(each.dest in chosen for group in groups for each in group)


def _as_words(option: str, action: argparse.Action, value: Any, profile: Profile) -> tuple[str, ...]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{profile.origin}: defaults.{option[2:]} is {value!r}; expected true or false")
        return (option,) if value else ()
    many = value if isinstance(value, list) else [value]
    if isinstance(value, bool | dict) or (len(many) > 1 and not isinstance(action, argparse._AppendAction)):
        raise UsageError(f"{profile.origin}: defaults.{option[2:]} has to be one text or number")
    return tuple(f"{option}={each}" for each in many)


def _check_known(profile: Profile, known: set[str]) -> None:
    for name in profile.defaults:
        if name not in known:
            raise UsageError(f"{profile.origin}: defaults has {name!r}, which no verb has{did_you_mean(name, known)}")
