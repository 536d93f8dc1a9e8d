"""Asks the user whether a verb that cannot be undone is meant."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from aiokcc.cli.verb import argument
from aiokcc.errors import UsageError

__all__ = ["YES", "ask"]

YES: Final = argument("-y", "--yes", action="store_true", help="do not ask")


def ask(options: argparse.Namespace, verb: str, what: str, *, why: str = "cannot be undone") -> bool:
    """Print what the verb does, and return whether the user agrees; with --yes, agree without a question.

    Raises UsageError without --yes if stdin is no terminal; it says ``why`` a question is needed.
    """
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{verb} {why}; add --yes to confirm")
    print(what)
    try:
        answer = input(f"{verb.capitalize()}? [y/N] ")
    except EOFError:
        answer = ""
    return answer.strip().lower() in {"y", "yes"}
