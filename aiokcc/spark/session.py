"""A Spark session that is ready for replays: it reads Kafka, and its settings suit many small jobs.

It sets, for these reasons:

- The Kafka connector, in the version of the installed pyspark, from jars that are fetched once and kept (`aiokcc.local`):
  no network at the next start.
- Adaptive execution on and as many shuffle partitions as cores: with Spark's default of 200 a small job takes a second longer.
  On a cluster it is ``spark.cores.max``, or 16 where that is not given: how many cores come is not known at the start.
- What consumers have fetched and no later job went on with is thrown away after seconds, not minutes: each job that begins
  elsewhere than the last one ended, such as under a bound on lateness, would leave thousands of records in memory.
- Spark remembers the last jobs for its web pages, a thousand of them with their plans; here it is a few dozen, so that the
  driver's memory stays flat over many periods.
- The session's time zone is UTC: a period of a day is a day of UTC wherever the driver runs.
- No web server and no progress bar: a replay shows its own.
- With a master on this machine the driver listens on 127.0.0.1 only.

pyspark replaces the handler of SIGINT when a session is made in the main thread, and with it asyncio's, so that Ctrl-C no
longer cancels the main task. The session is therefore always made in a thread of its own. It ends with ``spark.stop()``; the
Java process behind it ends with this process, whatever way that ends: it watches a pipe that only this process holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

from aiokcc.errors import LocalServiceError, UsageError
from aiokcc.local import prepare_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

T = TypeVar("T")

_log: Final = logging.getLogger("aiokcc.spark")
_LOCAL: Final = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?$")
_LOOPBACK: Final = re.compile(r"local\b|spark://(127\.\d+\.\d+\.\d+|localhost):\d+$")
_CONNECTOR: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_CORES_OF_A_CLUSTER: Final = 16
_DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
}


def session(
    *,
    app: str | None = None,
    master: str | None = None,
    progress: Callable[[str], None] | None = None,
    **conf: object,
) -> SparkSession:
    """Return a session with the Kafka connector and settings that suit a replay; the start takes about 8 s. ::

        spark = aiokcc.spark.session(app="revenue", master="local[4]", **{"spark.driver.memory": "4g"})

    It is an ordinary session, which ``spark.stop()`` or ``with`` ends. If one of the same master runs already in this process,
    as after a cell of a notebook was run again, that one is returned. In a program that ``spark-submit`` runs, its settings
    have priority over ours, and it must bring the connector.
    In an asyncio program: ``await asyncio.to_thread(aiokcc.spark.session, …)``.

    Args:
        app: the application's name.
        master: ``local[N]`` for N cores of this machine, ``local[*]`` for all, or a cluster's ``spark://HOST:PORT``. By default
            what ``spark-submit`` was given, and ``local[*]`` where the program was started without it.
        progress: called with a line of text now and then; by default a person at a terminal or in a notebook sees it.
        conf: Spark's own settings, in place of ours where they are the same.

    Raises:
        UsageError: pyspark is missing, a setting is none of Spark's, or a session with another master is running.
        LocalServiceError: no Java, no connector, or Spark did not start.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    _check(app, master, conf)
    if submitted:
        return _in_a_thread(lambda: _make_submitted(app, master, conf))
    assert master is not None
    return _in_a_thread(lambda: _make(app, master, progress or _say, conf))


def _check(app: str | None, master: str | None, conf: Mapping[str, object]) -> None:
    if app == "":
        raise UsageError("app must be a name; it is what Spark's pages and logs show")
    if master is not None and master.startswith("sc://"):
        raise UsageError(
            f"master {master!r} is a Spark Connect server, whose jars and settings are its own: make that session with "
            f"SparkSession.builder.remote({master!r}).getOrCreate(); aiokcc.spark.session() makes classic ones"
        )
    if (
        master is not None
        and master.startswith("local")
        and not (_LOCAL.match(master) or master.startswith("local-cluster["))
    ):
        raise UsageError(
            f"master {master!r}: on this machine it is local[N] with N cores, or local[*] with all of them"
        )
    for key in conf:
        if not key.startswith("spark."):
            raise UsageError(
                f"{key!r} is no setting of Spark; they are given under their full names, as in "
                f"session(**{{'spark.executor.memory': '2g'}})"
            )


def _in_a_thread(make: Callable[[], T]) -> T:
    """Return the result of `make`, which runs in a daemon thread, so that Ctrl-C ends the waiting at once."""
    made: Future[T] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            made.set_exception(error)

    threading.Thread(target=run, name="aiokcc-spark-session", daemon=True).start()
    return made.result()


def _make_submitted(app: str | None, master: str | None, conf: Mapping[str, object]) -> SparkSession:
    """Make a session in a program that spark-submit runs: Java runs already, with the settings it was given."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    chosen = {key: _text(value) for key, value in conf.items()}
    settings = {**{key: value for key, value in _SETTINGS.items() if key not in given}, **chosen}
    if app is not None:
        settings["spark.app.name"] = app
    if master is not None:
        settings["spark.master"] = master
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return _equip(builder.getOrCreate(), {**given, **conf})


def _make(app: str | None, master: str, say: Callable[[str], None], conf: Mapping[str, object]) -> SparkSession:
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise UsageError("aiokcc.spark needs PySpark: pip install 'aiokcc[spark]'") from error
    if running := _running(SparkContext, master):
        say(f"Spark {running.version} runs already: {master}")
        return _equip(running, conf)
    files = asyncio.run(prepare_spark(say))
    settings = _settings(master, [str(jar) for jar in files.jars], conf)
    environment = {
        "JAVA_HOME": str(files.java_home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    if _LOOPBACK.match(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    say(f"Starting Spark {files.version} on {master}: about 8 s …")
    began = time.monotonic()
    builder = SparkSession.builder.appName(app or "aiokcc").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _environment(environment):
            spark = builder.getOrCreate()
    except Exception as error:
        raise LocalServiceError(f"Spark did not start on {master}: {error}") from error
    say(f"Spark is up after {time.monotonic() - began:.1f} s")
    return _equip(spark, conf)


def _settings(master: str, jars: list[str], conf: Mapping[str, object]) -> dict[str, str]:
    settings = {**_SETTINGS}
    if _LOOPBACK.match(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {key: _text(value) for key, value in conf.items()}
    # Added to the user's own, not in their place
    settings["spark.jars"] = ",".join([*filter(None, [settings.get("spark.jars")]), *jars])
    logging_file = importlib.resources.files("aiokcc.spark") / "log4j2.properties"
    if "log4j" not in settings.get(_DRIVER_OPTIONS, ""):
        quiet = f'"-Dlog4j2.configurationFile={logging_file}"'
        settings[_DRIVER_OPTIONS] = f"{settings.get(_DRIVER_OPTIONS, '')} {quiet}".strip()
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _running(context_type: type, master: str) -> SparkSession | None:
    """Return the session that runs in this process, or None. Raise UsageError if it has another master."""
    from pyspark.sql import SparkSession

    context = context_type._active_spark_context  # type: ignore[attr-defined]
    if context is None or context._jsc is None:
        return None
    if context.master != master:
        raise UsageError(
            f"a Spark session with the master {context.master!r} is running in this process, and there can be only one; "
            f"use that one, or call its stop() first"
        )
    return SparkSession.builder.getOrCreate()


def _equip(spark: SparkSession, conf: Mapping[str, object]) -> SparkSession:
    """Check that a running session has the connector, set its shuffle partitions, and return it."""
    try:
        spark.sparkContext._jvm.org.apache.spark.util.Utils.classForName(_CONNECTOR, True, False)
    except Exception as error:
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
        raise LocalServiceError(
            f"Spark's Java process was started without the Kafka connector, and that cannot be added later. Give it to "
            f"spark-submit with --packages {package}; or, where this process has made a session before, start the process "
            f"(in a notebook: the kernel) again and call aiokcc.spark.session() first"
        ) from error
    if "spark.sql.shuffle.partitions" not in conf:
        cores = spark.sparkContext.defaultParallelism
        if not _LOCAL.match(spark.sparkContext.master):  # its executors are still registering: that number is too small
            cores = int(str(conf.get("spark.cores.max", max(cores, _CORES_OF_A_CLUSTER))))
        spark.conf.set("spark.sql.shuffle.partitions", str(max(cores, 1)))
    return spark


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block: pyspark takes some settings only from there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _say(line: str) -> None:
    _log.info("%s", line)
    if hasattr(sys, "ps1") or sys.stderr.isatty():  # a notebook or a Python shell; a terminal
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
