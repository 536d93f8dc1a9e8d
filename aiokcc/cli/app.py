"""The entry point: parses the arguments, runs the verb, and turns every error into a message and an exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Awaitable, Sequence
from typing import Final

from aiokcc.cli.arguments import parse, peek_value
from aiokcc.cli.logs import LEVELS, LOG_FORMATS, choose_logs, is_json, set_up_logs
from aiokcc.cli.render import print_message
from aiokcc.cli.verb import StoreUse, Verb
from aiokcc.core.masking import mask_command
from aiokcc.credentials import hide_secrets
from aiokcc.errors import (
    AiokccError,
    CorruptNodeError,
    KafkaError,
    KafkaRefusedError,
    NoAuthError,
    StoreUnreachableError,
    UsageError,
)
from aiokcc.exception_groups import main_error
from aiokcc.stores import open_store

__all__ = ["main"]

log = logging.getLogger("aiokcc.cli")

DONE: Final = 0
FAILED: Final = 1
USAGE_ERROR: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM


class _Terminated(BaseException):
    """Raised when SIGTERM has cancelled the command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises; prints a traceback only with --verbose."""
    words = list(sys.argv[1:] if argv is None else argv)
    verbose = "-v" in words or "--verbose" in words
    _set_up_early_logs(words, verbose=verbose)
    accepted = False
    try:
        options = parse(words)
        set_up_logs(options.logs)
        verb = _check(options)
        _warn_of_typed_secrets(options)
        if not verb.confirm(options):
            print("Nothing was changed.")
            return FAILED
        accepted = True
        assert verb.run is not None
        code = asyncio.run(_until_terminated(verb.run(options)))
        sys.stdout.flush()
        return code
    except SystemExit as end:  # help or version was shown
        return end.code if isinstance(end.code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except _Terminated:
        return TERMINATED
    except Exception as error:  # noqa: BLE001 - every error becomes a message
        cause = main_error(error, lambda each: isinstance(each, AiokccError))
        if isinstance(cause, BrokenPipeError):  # the reader is gone, as in `aiokcc status | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        if verbose and not is_json():
            print(hide_secrets(traceback.format_exc()), end="", file=sys.stderr)
        _print_error(cause, verbose=verbose)
        return FAILED if accepted else USAGE_ERROR


def _set_up_early_logs(words: Sequence[str], *, verbose: bool) -> None:
    """Set the logs up from what was typed, also if it cannot be parsed, so that the error has the format that was asked for."""
    log_format = peek_value(words, "--log-format") or os.environ.get("AIOKCC_LOG_FORMAT")
    level = peek_value(words, "--log-level") or os.environ.get("AIOKCC_LOG_LEVEL")
    known = log_format if log_format in LOG_FORMATS else None
    set_up_logs(choose_logs(known, level if level in LEVELS else None, verbose=verbose))


def _check(options: argparse.Namespace) -> Verb:
    """Return the verb. Raises UsageError for arguments that are invalid whatever the store holds."""
    verb: Verb = options.selected
    if options.store == "kafka" and verb.store is StoreUse.RUN:
        verb.check(options)  # makes a URL of it
    if options.store == "kafka":
        raise UsageError(
            "--store kafka is for `aiokcc replay`, which names the root by its topics; give the URL that it prints, as in "
            "'kafka://127.0.0.1:9092/orders'. `aiokcc list` shows all roots of a Kafka"
        )
    if options.store:
        open_store(options.store)
    verb.check(options)
    return verb


def _warn_of_typed_secrets(options: argparse.Namespace) -> None:
    """Print a warning if a secret was typed: everybody who can list the processes of the machine can read it."""
    if mask_command(options.words) != options.words:
        print_message(
            "Warning: the command line has a password in it, which everybody on this machine can read while the command runs. "
            "Name it in place of writing it: env:NAME or file:PATH; for a ZooKeeper, zk://host:2181/root?auth=env:NAME."
        )


async def _until_terminated(work: Awaitable[int]) -> int:
    """Await the work. SIGTERM cancels it, as Ctrl-C does, and raises _Terminated once it has cleaned up."""
    task = asyncio.current_task()
    assert task is not None
    asked = False

    def terminate() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    with contextlib.suppress(NotImplementedError):  # a system without signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if asked:
            raise _Terminated from None
        raise


def _print_error(error: BaseException, *, verbose: bool) -> None:
    if isinstance(error, AiokccError):
        text = str(error)
    elif isinstance(error, OSError):
        text = error.strerror or str(error)
        text = f"{error.filename}: {text}" if error.filename else text
    else:
        text = f"unexpected error: {type(error).__name__}: {error}. --verbose shows the traceback; please report it"
    hint = _hint(error)
    if is_json():
        log.error("%s", text, extra={"hint": hint} if hint else {}, exc_info=error if verbose else None)
        return
    print(f"aiokcc: {hide_secrets(text)}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


def _hint(error: BaseException) -> str:
    match error:
        case StoreUnreachableError() if re.search("certificate|credentials|TLS|security_protocol", str(error)):
            return "Credentials are given by the URL, --kafka-config FILE or a profile; `aiokcc config` shows which."
        case StoreUnreachableError():
            service = "kafka" if "Kafka broker" in str(error) else "zookeeper"
            return f"Is it running there? `aiokcc local {service}` starts one on this machine; --timeout waits longer."
        case KafkaRefusedError():
            return (
                "Credentials are given by --kafka-config FILE or a profile; `aiokcc config` shows which are in force."
            )
        case KafkaError():
            return "Is Kafka running there? `aiokcc local kafka` starts one on this machine; --timeout waits longer."
        case NoAuthError():
            return "They are given by the URL, zk://host:2181/root?auth=env:NAME, or a profile; `aiokcc config` shows which."
        case CorruptNodeError():
            return "Nothing was changed. Somebody wrote this node by hand, or the root belongs to another program."
        case UsageError() if "there is no group" in str(error):
            return "Is the root, the part of the URL after the servers, the one the members use?"
    return ""
