"""The entry point: parses the arguments, runs the verb, and turns every error into a message and an exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Sequence
from typing import Final

from aiokcc.cli.arguments import parse
from aiokcc.cli.verb import Verb
from aiokcc.core.masking import mask_text
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
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    else:
        for name in ("aiokcc", "aiokafka"):  # the command prints its own messages
            logging.getLogger(name).addHandler(logging.NullHandler())
    accepted = False
    try:
        options = parse(words)
        verb = _check(options)
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
        if verbose:
            print(mask_text(traceback.format_exc()), end="", file=sys.stderr)
        _print_error(cause)
        return FAILED if accepted else USAGE_ERROR


def _check(options: argparse.Namespace) -> Verb:
    """Return the verb. Raises UsageError for arguments that are invalid whatever the store holds."""
    verb: Verb = options.selected
    if options.store:
        open_store(options.store)
    verb.check(options)
    return verb


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


def _print_error(error: BaseException) -> None:
    if isinstance(error, AiokccError):
        text = str(error)
    elif isinstance(error, OSError):
        text = error.strerror or str(error)
        text = f"{error.filename}: {text}" if error.filename else text
    else:
        text = f"unexpected error: {type(error).__name__}: {error}. --verbose shows the traceback; please report it"
    print(f"aiokcc: {mask_text(text)}", file=sys.stderr)
    if hint := _hint(error):
        print(f"  {hint}", file=sys.stderr)


def _hint(error: BaseException) -> str:
    match error:
        case StoreUnreachableError():
            return "Is ZooKeeper running there? `aiokcc local zookeeper` starts one on this machine; --timeout waits longer."
        case KafkaRefusedError():
            return "Give the credentials with --consumer, such as --consumer sasl_plain_password=env:NAME (see replay --help)."
        case KafkaError():
            return "Is Kafka running there? `aiokcc local kafka` starts one on this machine; --timeout waits longer."
        case NoAuthError():
            return "On the command line they go into the URL: zk://USER:PASSWORD@host:2181/root"
        case CorruptNodeError():
            return "Nothing was changed. Somebody wrote this node by hand, or the root belongs to another program."
        case UsageError() if "there is no group" in str(error):
            return "Is the root, the part of the URL after the servers, the one the members use?"
    return ""
