"""``aiokcc pipeline``: Spark pipelines from the command line.

``run`` and ``restate``, which start Spark, are in :mod:`aiokcc.cli.pipeline_jobs`; ``late``, ``status`` and ``history``, which
only read, are here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from dataclasses import replace
from typing import Any, Final

from aiokcc.cli.argument_types import whole_number
from aiokcc.cli.pipeline_jobs import (
    add_restate_arguments,
    add_run_arguments,
    check_restate,
    check_run,
    run_pipeline,
    run_restatement,
)
from aiokcc.cli.render import write_table
from aiokcc.cli.verb import StoreUse, Verb, argument, open_existing
from aiokcc.core.formatting import count
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError
from aiokcc.runtime.pipelines import PipelineStatus, read_pipeline, read_pipelines
from aiokcc.views.model import Table
from aiokcc.views.pipeline_view import pipeline_table

__all__ = ["VERB"]

log = logging.getLogger("aiokcc.cli")

_PARQUET, _DELTA = "Parquet in ", "Delta table "


# -- late --------------------------------------------------------------------------------------------------------------


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
    title = f"{pipeline.name}: {_count_batches(batches)}"
    print(write_table(Table(title, columns, rows, right=frozenset({0, 1, 5, 6}))))
    return 0


def _count_batches(entries: list[dict[str, Any]]) -> str:
    restated = sum("restatement" in entry for entry in entries)
    batches = count(len(entries) - restated, "batch")
    return f"{batches}, {count(restated, 'restatement')}" if restated else batches


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
            arguments=(add_run_arguments,),
            check=check_run,
            run=run_pipeline,
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
            arguments=(add_restate_arguments,),
            check=check_restate,
            run=run_restatement,
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
