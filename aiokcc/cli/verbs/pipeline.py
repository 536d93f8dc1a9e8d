"""``aiokcc pipeline run``, ``restate``, ``late``, ``status`` and ``history``: Spark pipelines from the command line."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from dataclasses import replace
from typing import Any, Final

from aiokcc.cli.argument_types import period_or, time_or, whole_number
from aiokcc.cli.functions import load_function
from aiokcc.cli.render import print_message, write_table
from aiokcc.cli.verb import SERVERS, StoreUse, Verb, argument, open_existing
from aiokcc.core.formatting import count
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.runtime.pipelines import PipelineStatus, read_pipeline, read_pipelines
from aiokcc.views.model import Table
from aiokcc.views.pipeline_view import pipeline_table

__all__ = ["VERB"]

log = logging.getLogger("aiokcc.cli")

_REFUSED: Final = 2
"""The exit code if another start would be refused as well."""
_PARQUET, _DELTA = "Parquet in ", "Delta table "


# -- run ---------------------------------------------------------------------------------------------------------------


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="gets (frame, periods) and returns a frame")
    parser.add_argument("--name", required=True, metavar="NAME", help="identifies the pipeline under the store's root")
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", action="append", metavar="TOPIC", help="to read; may be repeated")
    topics.add_argument("--pattern", metavar="REGEX", help="or all topics whose whole name matches")
    parser.add_argument("--period", type=period_or(), required=True, metavar="TIME", help="such as 1h")
    what = "where the result goes: parquet:DIRECTORY or delta:URI"
    parser.add_argument("--sink", required=True, metavar="KIND:PLACE", help=what)
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help=f"Kafka; default: ${SERVERS}")
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
    parser.add_argument("--max-periods", type=whole_number(1), default=1000, metavar="N", help="in one job")
    parser.add_argument("--retries", type=whole_number(0), default=2, metavar="N", help="of a failed job; default: 2")
    parser.add_argument("--keeps-periods", action="store_true", help="you know that the function keeps periods apart")
    what = "the version of the function, recorded with each batch"
    parser.add_argument("--function-version", metavar="TEXT", help=what)
    parser.add_argument("--from-scratch", action="store_true", help="delete what is published, and start again")
    parser.add_argument("--master", metavar="URL", help="of Spark; default: local[*]")
    what = "a setting of Spark, such as spark.driver.memory=4g; may be repeated"
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=what)


def _check(options: argparse.Namespace) -> None:
    _check_common(options)
    _sink_place(options.sink)
    load_function(options.function, "a frame and its periods", 2)


def _check_common(options: argparse.Namespace) -> None:
    if not options.bootstrap_servers:
        raise UsageError(f"where is Kafka? Give --bootstrap-servers HOST:PORT, or set {SERVERS} to it")
    for setting in options.conf:
        if "=" not in setting:
            raise UsageError(f"--conf {setting}: expected NAME=VALUE, such as spark.driver.memory=4g")


def _sink_place(text: str) -> tuple[str, str]:
    kind, _, place = text.partition(":")
    if kind not in ("parquet", "delta") or not place:
        raise UsageError(f"--sink {text}: expected parquet:DIRECTORY or delta:URI, such as parquet:out/revenue")
    return kind, place


async def _run(options: argparse.Namespace) -> int:
    """Run the pipeline and return 0, or 2 if it is refused. Raises AiokccError if it fails. Cancelling stops the job."""
    import aiokcc.spark

    kind, place = _sink_place(options.sink)
    sink = aiokcc.spark.ParquetSink(place) if kind == "parquet" else aiokcc.spark.DeltaSink(place)
    function = load_function(options.function, "a frame and its periods", 2)
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.conf)
    spark = await asyncio.to_thread(aiokcc.spark.session, app=options.name, master=options.master, **settings)
    end = None if options.follow else options.end
    try:
        async with aiokcc.spark.replay(
            spark,
            *(options.topic or ()),
            pattern=options.pattern,
            bootstrap_servers=options.bootstrap_servers,
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
        ) as replay:
            summary = await replay.for_each_period(function, sink)
    except UsageError as refused:
        print_message(f"aiokcc: {refused}")
        return _REFUSED
    finally:
        await asyncio.to_thread(spark.stop)
    if summary.periods == 0:
        print_message(f"{options.name}: nothing to do")
    else:
        to = "" if summary.event_time is None else f", up to {format_time(summary.event_time)}"
        print_message(
            f"{options.name}: published {count(summary.periods, 'period')} with {count(summary.records, 'record')} in "
            f"{count(summary.jobs, 'job')}{to}"
        )
    return 0


# -- restate and late --------------------------------------------------------------------------------------------------


def _add_restate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="gets (frame, periods) and returns a frame")
    parser.add_argument("--name", required=True, metavar="NAME", help="the pipeline")
    parser.add_argument("--from", dest="start", type=time_or(), metavar="TIME", help="the start of the first period")
    parser.add_argument("--to", dest="end", type=time_or(), metavar="TIME", help="the end of the last period")
    what = "all periods whose late records wait, in place of --from and --to"
    parser.add_argument("--late", action="store_true", help=what)
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help=f"Kafka; default: ${SERVERS}")
    parser.add_argument("--max-periods", type=whole_number(1), default=1000, metavar="N", help="in one job")
    parser.add_argument("--retries", type=whole_number(0), default=2, metavar="N", help="of a failed job; default: 2")
    parser.add_argument("--keeps-periods", action="store_true", help="you know that the function keeps periods apart")
    what = "the version of the function, recorded with the restatement"
    parser.add_argument("--function-version", metavar="TEXT", help=what)
    parser.add_argument("--master", metavar="URL", help="of Spark; default: local[*]")
    what = "a setting of Spark, such as spark.driver.memory=4g; may be repeated"
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help=what)


def _check_restate(options: argparse.Namespace) -> None:
    _check_common(options)
    if options.late and (options.start is not None or options.end is not None):
        raise UsageError("--late restates all periods whose late records wait; leave --from and --to out")
    if not options.late and (options.start is None or options.end is None):
        raise UsageError("which periods? Give --from TIME --to TIME, or --late for those whose late records wait")
    load_function(options.function, "a frame and its periods", 2)


async def _restate(options: argparse.Namespace) -> int:
    """Restate periods and return 0, or 2 if it is refused. Raises AiokccError if it fails. Cancelling stops the job."""
    import aiokcc.spark
    from aiokcc.spark.restate import prepare_restate

    function = load_function(options.function, "a frame and its periods", 2)
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.conf)
    spark = await asyncio.to_thread(aiokcc.spark.session, app=options.name, master=options.master, **settings)
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
            max_periods=options.max_periods,
            retries=options.retries,
            keeps_periods=options.keeps_periods,
            version=options.function_version,
            connect_timeout=options.timeout,
        ).run()
    except UsageError as refused:
        print_message(f"aiokcc: {refused}")
        return _REFUSED
    finally:
        await asyncio.to_thread(spark.stop)
    if summary.periods == 0:
        print_message(f"{options.name}: nothing to do")
    else:
        print_message(
            f"{options.name}: restated {count(summary.periods, 'period')} with {count(summary.records, 'record')} in "
            f"{count(summary.jobs, 'job')}"
        )
    return 0


async def _late(options: argparse.Namespace) -> int:
    """Print the periods whose late records wait; return 3 if there are some."""
    from aiokcc.spark.restatement import list_late

    periods = await list_late(open_existing(options), options.name, connect_timeout=options.timeout)
    if options.json:
        found = [
            {
                "start": format_time(period.start),
                "end": format_time(period.end),
                "records": period.records,
                "offsets": [f"{one.partition} {one.first}-{one.last}" for one in period.offsets],
            }
            for period in periods
        ]
        print(json.dumps(found, indent=2))
    elif not periods:
        print(f"{options.name}: no late records wait.")
    else:
        rows = tuple(
            (
                format_time(period.start),
                format_time(period.end),
                f"{period.records:,}",
                " ".join(f"{one.partition} {one.first}-{one.last}" for one in period.offsets),
            )
            for period in periods
        )
        title = f"{options.name}: late records wait for {count(len(rows), 'period')}"
        print(write_table(Table(title, ("from", "to", "records", "offsets"), rows, right=frozenset({2}))))
    return 3 if periods else 0


# -- status and history ------------------------------------------------------------------------------------------------


async def _status(options: argparse.Namespace) -> int:
    """Print the pipelines; return 3 if one of them has failed and is not published since, or cannot be read."""
    store = open_existing(options)
    problems: list[str] = []
    async with store.session(connect_timeout=options.timeout) as session:
        pipelines = await read_pipelines(store, session, problems)
    if options.name is not None:
        pipelines = tuple(pipeline for pipeline in pipelines if pipeline.name == options.name)
        if not pipelines and not problems:
            raise _no_pipeline(options.name, store.describe(""))
    pipelines = tuple([await _with_late(options, pipeline) for pipeline in pipelines])
    for problem in problems:
        print(problem, file=sys.stderr)
    if options.json:
        print(json.dumps([pipeline.as_dict() for pipeline in pipelines], indent=2))
    elif not pipelines and not problems:
        print(f"There is no pipeline under {store.describe('')}.")
    else:
        print(write_table(pipeline_table(pipelines, time.time())))
    return 3 if problems or any(pipeline.error is not None for pipeline in pipelines) else 0


async def _with_late(options: argparse.Namespace, pipeline: PipelineStatus) -> PipelineStatus:
    """Return the pipeline with the number of late records that wait, if it lists them and its result can be read here."""
    if not pipeline.restates_late or pipeline.batch < 0:
        return pipeline
    from aiokcc.spark.restatement import list_late

    try:
        found = await list_late(open_existing(options), pipeline.name, connect_timeout=options.timeout)
    except Exception as error:  # noqa: BLE001 - the result may be on another machine, or need credentials
        log.info("the late records of %s cannot be read here: %s", pipeline.name, error)
        return pipeline
    return replace(pipeline, late=sum(period.records for period in found))


async def _history(options: argparse.Namespace) -> int:
    """Print the published batches of a pipeline, the latest last."""
    store = open_existing(options)
    async with store.session(connect_timeout=options.timeout) as session:
        pipeline = await read_pipeline(store, session, options.name)
    if pipeline is None:
        raise _no_pipeline(options.name, store.describe(""))
    batches = await asyncio.to_thread(_published, pipeline)
    shown = batches[-options.last :]
    if options.json:
        print(json.dumps(shown, indent=2))
        return 0
    rows = tuple(
        (
            _title(b),
            str(b["attempt"]),
            b["version"] or "",
            b["from"],
            b["to"],
            str(b["periods"]),
            f"{b['rows']:,}",
            b["offsets"],
        )
        for b in shown
    )
    columns = ("batch", "attempt", "version", "from", "to", "periods", "rows", "offsets")
    print(
        write_table(
            Table(f"{pipeline.name}: {count(len(batches), 'batch')}", columns, rows, right=frozenset({0, 1, 5, 6}))
        )
    )
    return 0


def _title(entry: dict[str, Any]) -> str:
    return f"restatement {entry['restatement']}" if "restatement" in entry else str(entry["batch"])


def _published(pipeline: PipelineStatus) -> list[dict[str, Any]]:
    from aiokcc.spark.history import delta_history, parquet_history

    if pipeline.sink.startswith(_PARQUET):
        return parquet_history(pipeline.sink.removeprefix(_PARQUET))
    if pipeline.sink.startswith(_DELTA):
        return delta_history(pipeline.sink.removeprefix(_DELTA), pipeline.name)
    raise UsageError(f"the result of {pipeline.name!r} is {pipeline.sink}, which keeps no history of batches")


def _no_pipeline(name: str, where: str) -> UsageError:
    return UsageError(f"there is no pipeline {name!r} under {where}; `aiokcc pipeline status` lists them")


_JSON = argument("--json", action="store_true", help="JSON in place of a table")

VERB: Final = Verb(
    name="pipeline",
    brief="run a Spark pipeline; show what pipelines have published",
    usage="ACTION …",
    description="""\
Run a Spark pipeline from the command line, and show what the pipelines under a
root have published. Needs: pip install 'aiokcc[spark]'
""",
    epilog="""\
examples:
  aiokcc pipeline run revenue:by_country --name revenue --topic orders \\
      --period 1h --sink parquet:out/revenue --available-now
  aiokcc pipeline status
  aiokcc pipeline history --name revenue
  aiokcc pipeline restate revenue:by_country --name revenue \\
      --from 2026-03-01T00:00Z --to 2026-03-02T00:00Z
""",
    part="action",
    parts=(
        Verb(
            name="run",
            brief="compute every period and publish it",
            usage="""\
MODULE:FUNCTION [URL] --name NAME --topic TOPIC …
                           --period TIME --sink KIND:PLACE [--available-now] …""",
            arguments=(_add_arguments,),
            check=_check,
            run=_run,
            store=StoreUse.RUN,
            description="""\
Compute every period of Kafka topics with Spark, and publish it once. Started
again, it resumes after what is published. With --available-now each start
publishes what is closed by then and returns, as a scheduler needs it.
""",
            epilog="""\
examples:
  aiokcc pipeline run revenue:by_country --name revenue --topic orders \\
      --period 1h --sink parquet:out/revenue --available-now

exit codes:
  0  published, or nothing to do
  1  a service or a job has failed: start it again, and it resumes
  2  refused: the arguments, or a table or a root of something else
""",
        ),
        Verb(
            name="restate",
            brief="compute published periods again and replace them",
            usage="""\
MODULE:FUNCTION [URL] --name NAME
                               --from TIME --to TIME …
       aiokcc pipeline restate MODULE:FUNCTION [URL] --name NAME --late …""",
            arguments=(_add_restate_arguments,),
            check=_check_restate,
            run=_restate,
            description="""\
Compute published periods again, from the records they were read from, and
replace exactly these periods in the result, all of them in one step. No driver
of the pipeline may run meanwhile. With --late all periods are restated whose
late records wait; `aiokcc pipeline late` lists them.
""",
            epilog="""\
examples:
  aiokcc pipeline restate revenue:by_country --name revenue \\
      --from 2026-03-01T00:00Z --to 2026-03-02T00:00Z
  aiokcc pipeline restate revenue:by_country --name revenue --late

exit codes:
  0  restated, or nothing to do
  1  a service or a job has failed, records are gone from Kafka, or a driver is
     at work: nothing was changed
  2  refused: the arguments, or times that are no boundaries of periods
""",
        ),
        Verb(
            name="late",
            brief="the periods whose late records wait to be restated",
            usage="[URL] --name NAME [--json]",
            arguments=(argument("--name", required=True, metavar="NAME", help="the pipeline"), _JSON),
            run=_late,
            description="""\
List the periods of a pipeline with late=restate whose late records are in no
period yet. `aiokcc pipeline restate --late` puts them there. This machine must
be able to read the result.
""",
            epilog="""\
exit codes:
  0  no late records wait
  3  some do
""",
        ),
        Verb(
            name="status",
            brief="how far each pipeline is published, and what it does",
            usage="[URL] [--name NAME] [--json]",
            arguments=(argument("--name", metavar="NAME", help="only this pipeline"), _JSON),
            run=_status,
            description="""\
Show for each pipeline under the root up to which time it is published, the
batch that is being computed and by whom, and why it failed the last time; the
version of its function, who restates it, and how many late records wait.
""",
            epilog="""\
exit codes:
  0  no pipeline has failed
  3  a job has failed, and its batch is not published since
""",
        ),
        Verb(
            name="history",
            brief="the published batches: offsets, rows, attempts",
            usage="[URL] --name NAME [--last N] [--json]",
            arguments=(
                argument("--name", required=True, metavar="NAME", help="the pipeline"),
                argument("--last", type=whole_number(1), default=20, metavar="N", help="only the last N; default: 20"),
                _JSON,
            ),
            run=_history,
            description="""\
Show the batches that a pipeline has published to Parquet or Delta. This machine
must be able to read the result.
""",
            epilog="""\
examples:
  aiokcc pipeline history --name revenue --last 5
  aiokcc pipeline history --name revenue --json | jq '.[-1].offsets'
""",
        ),
    ),
)
