"""``aiokcc replay``: runs a replay in one or several worker processes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from aiokcc.cli.argument_types import (
    listen_address,
    lookahead,
    period_or,
    seconds,
    storage,
    subscription,
    time_or,
    whole_number,
)
from aiokcc.cli.functions import load_function
from aiokcc.cli.interrupt import Interruption
from aiokcc.cli.kafka_options import KAFKA_ARGUMENTS, load_kafka
from aiokcc.cli.loops import AUTO, LOOP_VARIABLE, LOOPS, choose_loop
from aiokcc.cli.monitor import Monitor
from aiokcc.cli.previous_run import PreviousRun, read_previous_run, try_read_previous_run
from aiokcc.cli.render import open_progress_display, print_message, wrap
from aiokcc.cli.replay_options import make_replay, own_store_url, share_partitions, worker_spec
from aiokcc.cli.verb import SERVERS, StoreUse, Verb, command
from aiokcc.cli.worker_pool import WorkerPool, worker_pool
from aiokcc.core.assignors import ASSIGNORS, DEFAULT
from aiokcc.core.formatting import count, join_names
from aiokcc.core.masking import mask_url
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import format_duration, format_time
from aiokcc.errors import AiokccError, RunEnded, UsageError

if TYPE_CHECKING:
    from aiokcc.cli.probe_server import Probes

__all__ = ["VERB"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("handler", metavar="MODULE:HANDLER", help="the function that gets each record")
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--topic", action="append", metavar="TOPIC", help="to replay; may be repeated")
    what = "or all topics whose whole name matches, such as 'orders-.*'; with --follow also those created later"
    topics.add_argument("--pattern", metavar="REGEX", help=what)
    what = "such as 1m: the event time that all process before they wait for each other"
    parser.add_argument("--period", type=period_or(), required=True, metavar="TIME", help=what)
    what = "a time, 'earliest' (the default), or 'committed' (see --offset-storage)"
    parser.add_argument(
        "--from", dest="start", type=time_or("earliest", "committed"), default="earliest", metavar="TIME", help=what
    )
    end = parser.add_mutually_exclusive_group()
    what = "a time, or 'now' (the default): where the topics end when the run begins"
    end.add_argument("--to", dest="end", type=time_or("now"), metavar="TIME", help=what)
    end.add_argument("--follow", action="store_true", help="have no end: continue with new records")
    what = "the number of worker processes; default: 1"
    parser.add_argument("--processes", type=whole_number(1), default=1, metavar="N", help=what)
    what = (
        "who assigns partitions to processes: 'fixed' (the default): this command, once; or "
        "'managed': the group; start it on as many machines as you like, and stop or kill any of them"
    )
    parser.add_argument("--assignment", choices=("fixed", "managed"), default="fixed", metavar="HOW", help=what)
    what = (
        "each process has a session with the store of its own; by default those of one machine share one, "
        "except with --assignment managed, --follow, or one process"
    )
    parser.add_argument("--no-share-host", dest="share_host", action="store_false", help=what)
    what = "managed: the members' id; -1, -2 … are added where there are several processes. Default: host and process"
    parser.add_argument("--member", metavar="ID", help=what)
    what = (
        "managed: begin as soon as this many processes have joined, on all machines; default: --processes, if above 1"
    )
    parser.add_argument("--expect", type=whole_number(1), metavar="N", help=what)
    what = "managed: run only this topic, or at most N partitions of it; may be repeated. Default: all topics"
    parser.add_argument("--subscription", action="append", type=subscription, metavar="TOPIC[=N]", help=what)
    what = f"managed: how partitions are divided: {', '.join(ASSIGNORS)}; default: {DEFAULT}"
    parser.add_argument("--assignor", choices=tuple(ASSIGNORS), metavar="HOW", help=what)
    what = "managed: a function of (partition, member) that returns the partition's weight there, to balance by"
    parser.add_argument("--weight", metavar="MODULE:FUNCTION", help=what)
    for add in KAFKA_ARGUMENTS:
        add(parser)
    parser.add_argument("--group-id", metavar="ID", help="commit offsets to Kafka under this name as periods close")
    what = "where offsets are committed: kafka (the default, with --group-id) or store (in the store)"
    parser.add_argument(
        "--offset-storage", type=storage, choices=("kafka", "store"), default="kafka", metavar="WHERE", help=what
    )
    what = "how long a stop in good order may take; then it stops at once. Default: as long as the handlers take"
    parser.add_argument("--stop-timeout", type=seconds("--stop-timeout"), metavar="TIME", help=what)
    what = "serve /metrics for Prometheus, and /healthz, /livez and /readyz for probes, as 127.0.0.1:9464"
    parser.add_argument("--metrics", type=listen_address, metavar="HOST:PORT", help=what)
    what = "make OpenTelemetry spans of periods and batches; the module of the handler sets the SDK up"
    parser.add_argument("--traces", action="store_true", help=what)
    more = parser.add_argument_group("processing")
    more.add_argument("--batches", action="store_true", help="the handler gets lists: of one partition and one period")
    what = "let partitions run up to N periods ahead of the slowest; 'auto': as many as pay, within --max-apart; default: 0"
    more.add_argument("--lookahead", type=lookahead, default=0, metavar="N", help=what)
    what = "with --lookahead auto: how far partitions may lie apart, in event time, such as 15m"
    more.add_argument("--max-apart", type=period_or(what="the bound"), metavar="TIME", help=what)
    what = (
        "with --follow, once at the present: 'follow' the clock (the default), 'release' the gate, or a longer period"
    )
    more.add_argument("--caught-up", type=period_or("follow", "release"), default="follow", metavar="WHAT", help=what)
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
    what = "how often a handler that raised is called again; default: 0"
    faults.add_argument("--retries", type=whole_number(0), default=0, metavar="N", help=what)
    what = "a function of (record, reason), for the policies that say dead-letter"
    faults.add_argument("--dead-letter", metavar="MODULE:FUNCTION", help=what)
    levels = ("read_committed", "read_uncommitted")
    faults.add_argument("--isolation-level", choices=levels, default=levels[0], help=argparse.SUPPRESS)


def _choice(group: argparse._ArgumentGroup, name: str, when: str, *choices: str) -> None:
    help_ = f"{when}: {', '.join(choices)}; default: {choices[0]}"
    group.add_argument(name, choices=choices, default=choices[0], metavar="WHAT", help=help_)


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments that are invalid whatever the store and Kafka hold."""
    if not options.topic and options.pattern is None:
        raise UsageError("which topics? Give --topic TOPIC, once for each, or --pattern REGEX")
    load_kafka(options)
    if not options.bootstrap_servers:
        raise UsageError(
            f"where is Kafka? Give --bootstrap-servers HOST:PORT or --kafka-config, or set {SERVERS} to it"
        )
    if "://" in options.bootstrap_servers:
        raise UsageError(
            f"--bootstrap-servers {mask_url(options.bootstrap_servers)}: expected HOST:PORT, without a scheme"
        )
    if (options.lookahead == "auto") != (options.max_apart is not None):
        raise UsageError(
            "--lookahead auto and --max-apart TIME go together: TIME bounds what is chosen; give both, or neither"
        )
    options.own_store = getattr(options, "own_store", False) or options.store == "kafka"
    if options.store == "kafka":
        options.store = own_store_url(options)
    if options.processes > 1 and options.store.startswith("memory://"):
        raise UsageError(
            f"{mask_url(options.store)} exists only inside one process, but --processes is {options.processes}; "
            f"give the URL of a ZooKeeper (`aiokcc local up` starts one), or `--store kafka`, or omit --processes"
        )
    if options.metrics is not None and importlib.util.find_spec("prometheus_client") is None:
        raise UsageError("--metrics needs prometheus-client, which is not installed: pip install 'aiokcc[metrics]'")
    choose_loop(options.loop)
    load_function(options.handler, "a list of records" if options.batches else "a record")
    make_replay(options)  # checks the settings; does not connect


async def _run(options: argparse.Namespace) -> int:
    """Run the replay and return the exit code. Raises AiokccError if a worker fails. Cancelling stops the workers at once.

    The metrics are served first: an address that cannot be used is refused before anything is said or joined.
    """
    async with _probes(options) as (probes, where):
        return await _replay(options, probes, where)


async def _replay(options: argparse.Namespace, probes: Probes | None, metrics: str) -> int:
    """Run the replay as ``_run`` does. ``metrics`` is the address at which the probes are served."""
    previous = await read_previous_run(options)
    if previous.ended and await _has_ended(options):
        print_message(f"The run under {_where(options)} has ended already; there is nothing left to do.")
        print_message("To run it again, use another root: the end of the store's URL.")
        return 0
    shares = await share_partitions(options)
    print_message(wrap(_announcement(options, shares, previous)))
    if probes is not None:
        print_message(f"Metrics: {metrics}")
    monitor = Monitor(options, previous)
    monitor.probes = probes
    interruption = Interruption(monitor.stop, monitor.warn, timeout=options.stop_timeout, timed_out=monitor.timed_out)
    try:
        with open_progress_display() as display, interruption.handling():
            specs = [worker_spec(options, shares, n) for n in range(1, len(shares) + 1)]
            pool: WorkerPool | None = None
            try:
                async with worker_pool(specs, display.write if display.live else None) as pool:
                    await monitor.run(pool, display)
            finally:
                monitor.receive_last_counts([] if pool is None else pool.unread_reports())
    except asyncio.CancelledError:
        if not interruption.cancelled:
            raise
    if monitor.failure is not None and monitor.refused:
        raise AiokccError(monitor.failure)
    if monitor.failure is not None:
        resume = monitor.how_to_resume(await try_read_previous_run(options))
        raise AiokccError(f"{monitor.failure}\n{wrap(monitor.result('Stopped'))}\n{wrap(resume)}")
    if monitor.stopped or interruption.cancelled:
        last = await try_read_previous_run(options)
        if not last.ended:  # the run may have ended just now
            print_message(wrap(monitor.result("Stopped")))
            print_message(wrap(monitor.how_to_resume(last, in_order=not interruption.cancelled)))
            return interruption.code
    print_message(wrap(monitor.summary()))
    return 0


@contextlib.asynccontextmanager
async def _probes(options: argparse.Namespace) -> AsyncIterator[tuple[Probes | None, str]]:
    """Serve the metrics while the block runs, if that was asked for, and give the probes and the address.

    Raises UsageError if the address cannot be used.
    """
    if options.metrics is None:
        yield None, ""
        return
    from aiokcc.cli.probe_server import Probes, serve_probes

    probes = Probes(options.processes)
    async with serve_probes(probes, *options.metrics) as where:
        yield probes, where


async def _has_ended(options: argparse.Namespace) -> bool:
    """Return whether the run that has ended is the one that was asked for.

    Joining it compares all settings: GroupMismatchError if they differ. False if somebody has deleted it in the meantime.
    """
    try:
        async with make_replay(options):
            return False
    except RunEnded:
        return True


def _announcement(options: argparse.Namespace, shares: list[list[Partition]], previous: PreviousRun) -> str:
    partitions = [p for share in shares for p in share]
    names = options.topic or sorted({p.topic for p in partitions})
    topics = join_names(
        [f"{name} ({count(sum(p.topic == name for p in partitions), 'partition')})" for name in names], 5
    )
    if options.follow and options.pattern is not None:
        topics += f", and new topics that match {options.pattern!r},"
    start = f"from {options.start if isinstance(options.start, str) else format_time(options.start)}"
    end = f"to {format_time(options.end)}" if isinstance(options.end, int) else "to now"
    end = "and then the present" if options.follow else end
    if isinstance(options.end, int) and options.end > time.time() * 1000:
        end += " (in the future: it waits for the clock)"
    period = previous.period or options.period
    periods = "" if previous.held else f", in periods of {format_duration(period)}"
    by = "" if len(shares) == 1 else f", in {len(shares)} processes"
    text = f"Replaying {topics} {start} {end}{periods}{by}."
    if options.own_store:
        text += f"\nIts store, for `aiokcc status` and the other verbs: {_where(options)}"
    if previous.closed is not None:
        text += f"\nResuming the run under {_where(options)}: everything before {format_time(previous.closed)} is done."
    if previous.held:
        resume = command(options, "period", format_duration(options.period))
        text += f"\nThe run is on hold: the limit does not move until a period is set, as by:\n    {resume}"
    elif period != options.period:
        text += f"\nThe period was changed since the run began with {format_duration(options.period)}."
    return text


def _where(options: argparse.Namespace) -> str:
    return mask_url(options.store)


VERB: Final = Verb(
    name="replay",
    brief="run a handler over Kafka topics, all partitions in step in event time",
    usage="""\
MODULE:HANDLER (--topic TOPIC … | --pattern REGEX)
                     --period TIME [--from TIME] [--to TIME | --follow]
                     [--processes N] [--assignment managed]
                     [--bootstrap-servers HOST:PORT,…] [--store URL]
                     [more below]""",
    arguments=(_add_arguments,),
    check=_check,
    run=_run,
    store=StoreUse.RUN,
    description="""\
Run a function of yours over Kafka topics, one period of event time after the
other, in any number of processes: no process gets a record of a period before
all processes have finished the previous period.
Needs: pip install 'aiokcc[kafka]'

  # handlers.py
  async def handle(record):   # or a plain function
      # record is aiokafka's ConsumerRecord
      print(record.topic, record.partition, record.offset, record.value)
""",
    epilog="""\
examples:
  a Kafka and a ZooKeeper to try it with:
    aiokcc local up
  a month, in four processes:
    aiokcc replay handlers:handle --topic orders --topic payments --period 1m \\
        --from 2026-01-01T00:00Z --to 2026-02-01T00:00Z --processes 4 \\
        --bootstrap-servers 127.0.0.1:9092 --store zk://127.0.0.1:2181/january
  one process, no ZooKeeper:
    aiokcc replay handlers:handle --topic orders --period 1h \\
        --store memory://once
  history, then the present:
    aiokcc replay handlers:handle --topic orders --period 1m --follow
  new topics that match join:
    aiokcc replay handlers:handle --pattern 'orders-.*' --period 1m --follow
  in several terminals or on several machines, which share the partitions:
    aiokcc replay handlers:handle … --assignment managed
  a list of records at a time, which is faster:
    aiokcc replay handlers:handle_all --batches …
  the handler's output to a file; messages of aiokcc go to stderr:
    aiokcc replay handlers:handle … > result.csv

stopping:
  Ctrl-C or SIGTERM stops in good order: no further record is started, running
  handlers return, offsets are committed, partitions are released. A second one
  stops at once, whatever a handler does, and so does --stop-timeout TIME: the
  command then ends within TIME and seven seconds. Exit code 130 or 143.

resuming:
  After a stop, a kill or a failure the same command resumes where the last
  period closed: nothing is lost, at most the open period is handled again.
  After a stop in good order with --offset-storage store or --group-id, it
  resumes with the next record.
  A run that has ended stays so; to run it again, use another root (the end of
  the store's URL).
  With memory:// nothing is remembered; --group-id and --from committed resume
  from the offsets that were committed to Kafka.

times:
  ISO 8601 with a zone, such as 2026-01-31T00:00Z, or milliseconds since the
  epoch. Durations: 500ms, 30s, 5m, 1h30m, 1d.

environment:
  AIOKCC_STORE, AIOKCC_BOOTSTRAP_SERVERS and AIOKCC_LOOP are the defaults of
  --store, --bootstrap-servers and --loop; AIOKCC_PERIOD that of --period, and
  so on. A profile of aiokcc.toml has them too (`aiokcc config --help`).

passwords:
  Whoever can list the processes of this machine can read a command line. Keep
  passwords out of it: say where they are found, in files that you name:
    --kafka-config client.properties      sasl.password=env:NAME
                                          sasl.password=file:PATH
    --store 'zks://zk1:2281/replay?ca=ca.pem&auth=env:ZK_AUTH'
""",
)
