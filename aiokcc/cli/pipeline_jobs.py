"""``aiokcc pipeline run`` and ``restate``: their arguments, and the Spark jobs that they start."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from aiokcc.cli.argument_types import period_or, time_or, whole_number
from aiokcc.cli.functions import load_function
from aiokcc.cli.kafka_options import KAFKA_ARGUMENTS, load_kafka
from aiokcc.cli.render import print_message
from aiokcc.cli.verb import SERVERS, open_existing
from aiokcc.core.formatting import count
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError

if TYPE_CHECKING:
    from aiokcc.spark import Sink, Summary

__all__ = [
    "add_restate_arguments",
    "add_run_arguments",
    "check_restate",
    "check_run",
    "run_pipeline",
    "run_restatement",
]

_REFUSED: Final = 2
"""The exit code if another start would be refused as well."""
_ECHOES_OF_ERRORS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""The loggers of PySpark to which it writes errors that it raises."""


# -- run ---------------------------------------------------------------------------------------------------------------


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``aiokcc pipeline run``."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="gets (frame, periods) and returns a frame")
    parser.add_argument("--name", required=True, metavar="NAME", help="identifies the pipeline under the store's root")
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", action="append", metavar="TOPIC", help="to read; may be repeated")
    topics.add_argument("--pattern", metavar="REGEX", help="or all topics whose whole name matches")
    parser.add_argument("--period", type=period_or(), required=True, metavar="TIME", help="such as 1h")
    what = "where the result goes: parquet:DIRECTORY or delta:URI"
    parser.add_argument("--sink", required=True, metavar="KIND:PLACE", help=what)
    _add_kafka_arguments(parser)
    what = "a time, or 'earliest' (the default)"
    parser.add_argument("--from", dest="start", type=time_or("earliest"), default="earliest", metavar="TIME", help=what)
    end = parser.add_mutually_exclusive_group()
    what = "publish what is closed by now and return; the next start goes on there"
    end.add_argument("--available-now", action="store_true", help=what)
    what = "a time, or 'now' (the default): where the topics end when the run is founded"
    end.add_argument("--to", dest="end", type=time_or("now"), default="now", metavar="TIME", help=what)
    end.add_argument("--follow", action="store_true", help="have no end: continue with new records")
    parser.add_argument("--timestamp", metavar="EXPRESSION", help="event time in SQL; default: Kafka's timestamp")
    parser.add_argument("--lateness", metavar="TIME", help="how far a record may lie behind an earlier one")
    what = "of records later than that: 'deliver' them (the default), or list them until they are 'restate'd"
    parser.add_argument("--late", choices=("deliver", "restate"), default="deliver", metavar="POLICY", help=what)
    _add_job_arguments(parser, "each batch")
    parser.add_argument("--from-scratch", action="store_true", help="delete what is published, and start again")
    _add_spark_arguments(parser)


def check_run(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments of ``run`` that are invalid whatever the store and Kafka hold."""
    _check_common(options)
    _sink(options.sink)
    load_function(options.function, "a frame and its periods", 2)


def _check_common(options: argparse.Namespace) -> None:
    load_kafka(options)
    if not options.bootstrap_servers:
        raise UsageError(
            f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it; or bootstrap.servers in the file of "
            f"--kafka-config"
        )
    for setting in options.conf:
        if "=" not in setting:
            raise UsageError(f"--conf {setting}: expected NAME=VALUE, such as spark.driver.memory=4g")


def _sink(text: str) -> Sink:
    """Return the sink that ``--sink`` names. Raise UsageError if there is no such sink, or it cannot write to that place."""
    kind, _, place = text.partition(":")
    if kind not in ("parquet", "delta") or not place:
        raise UsageError(f"--sink {text}: expected parquet:DIRECTORY or delta:URI, such as parquet:out/revenue")
    from aiokcc.spark import DeltaSink, ParquetSink

    return ParquetSink(place) if kind == "parquet" else DeltaSink(place)


async def run_pipeline(options: argparse.Namespace) -> int:
    """Run the pipeline and return 0, or 2 if it is refused. Raises AiokccError if it fails. Cancelling stops the job."""
    import aiokcc.spark

    sink = _sink(options.sink)
    function = load_function(options.function, "a frame and its periods", 2)
    end = None if options.follow else options.end
    async with _spark_session(options) as spark:
        try:
            async with aiokcc.spark.replay(
                spark,
                *(options.topic or ()),
                pattern=options.pattern,
                bootstrap_servers=options.bootstrap_servers,
                kafka=load_kafka(options),
                store=options.store,
                name=options.name,
                period=options.period,
                start=options.start,
                end=end,
                trigger="available_now" if options.available_now else None,
                timestamp=options.timestamp,
                lateness=options.lateness,
                late=options.late,
                max_periods=options.max_periods,
                retries=options.retries,
                keeps_periods=options.keeps_periods,
                from_scratch=options.from_scratch,
                version=options.function_version,
                connect_timeout=options.timeout,
            ) as replay:
                summary = await replay.for_each_period(function, sink)
        except UsageError as refused:
            print_message(f"aiokcc: {refused}")
            return _REFUSED
    to = "" if summary.event_time is None else f", up to {format_time(summary.event_time)}"
    _print_result(options.name, "published", summary, to)
    return 0


# -- restate -----------------------------------------------------------------------------------------------------------


def add_restate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``aiokcc pipeline restate``."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="gets (frame, periods) and returns a frame")
    parser.add_argument("--name", required=True, metavar="NAME", help="the pipeline")
    parser.add_argument("--from", dest="start", type=time_or(), metavar="TIME", help="the start of the first period")
    parser.add_argument("--to", dest="end", type=time_or(), metavar="TIME", help="the end of the last period")
    what = "all periods whose late records wait, in place of --from and --to"
    parser.add_argument("--late", action="store_true", help=what)
    _add_kafka_arguments(parser)
    _add_job_arguments(parser, "the restatement")
    _add_spark_arguments(parser)


def check_restate(options: argparse.Namespace) -> None:
    """Raise UsageError for arguments of ``restate`` that are invalid whatever the store and Kafka hold."""
    _check_common(options)
    if options.late and (options.start is not None or options.end is not None):
        raise UsageError("--late restates all periods whose late records wait; leave --from and --to out")
    if not options.late and (options.start is None or options.end is None):
        raise UsageError("which periods? Give --from TIME --to TIME, or --late for those whose late records wait")
    load_function(options.function, "a frame and its periods", 2)


async def run_restatement(options: argparse.Namespace) -> int:
    """Restate periods and return 0, or 2 if it is refused. Raises AiokccError if it fails. Cancelling stops the job."""
    from aiokcc.spark.restate import prepare_restate

    function = load_function(options.function, "a frame and its periods", 2)
    async with _spark_session(options) as spark:
        try:
            summary = await prepare_restate(
                spark,
                function,
                store=open_existing(options),
                name=options.name,
                start=options.start,
                end=options.end,
                late=options.late,
                bootstrap_servers=options.bootstrap_servers,
                kafka=load_kafka(options),
                max_periods=options.max_periods,
                retries=options.retries,
                keeps_periods=options.keeps_periods,
                version=options.function_version,
                connect_timeout=options.timeout,
            ).run()
        except UsageError as refused:
            print_message(f"aiokcc: {refused}")
            return _REFUSED
    _print_result(options.name, "restated", summary)
    return 0


# -- both --------------------------------------------------------------------------------------------------------------


def _add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    servers, config, _ = KAFKA_ARGUMENTS  # settings of aiokafka alone would not reach Spark's consumer
    servers(parser)
    config(parser)
    parser.set_defaults(consumer=[])


def _add_job_arguments(parser: argparse.ArgumentParser, recorded_with: str) -> None:
    parser.add_argument("--max-periods", type=whole_number(1), default=1000, metavar="N", help="in one job")
    parser.add_argument("--retries", type=whole_number(0), default=2, metavar="N", help="of a failed job; default: 2")
    parser.add_argument("--keeps-periods", action="store_true", help="you know that the function keeps periods apart")
    what = f"the version of the function, recorded with {recorded_with}"
    parser.add_argument("--function-version", metavar="TEXT", help=what)


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="URL", help="of Spark; default: local[*]")
    what = "a setting of Spark, such as spark.driver.memory=4g; may be repeated"
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=what)


@asynccontextmanager
async def _spark_session(options: argparse.Namespace) -> AsyncIterator[Any]:
    """Give a Spark session, and stop it at the end of the block."""
    import aiokcc.spark

    _quieten_pyspark()
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.conf)
    spark = await asyncio.to_thread(aiokcc.spark.session, app=options.name, master=options.master, **settings)
    try:
        yield spark
    finally:
        await asyncio.to_thread(spark.stop)


def _quieten_pyspark() -> None:
    """Keep PySpark from writing each analysis error to stderr, as JSON with Java's stack. The error is raised as well."""
    from pyspark.logger import PySparkLogger

    for name in _ECHOES_OF_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _print_result(name: str, done: str, summary: Summary, to: str = "") -> None:
    """Print what was published or restated, or that there was nothing to do."""
    if summary.periods == 0:
        print_message(f"{name}: nothing to do")
        return
    records, jobs = count(summary.records, "record"), count(summary.jobs, "job")
    print_message(f"{name}: {done} {count(summary.periods, 'period')} with {records} in {jobs}{to}")
