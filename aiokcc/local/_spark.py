"""A real Spark cluster on loopback: a standalone master and its workers from the pyspark package, each in its own process.

Java is run directly. Spark's scripts would start a second Java each time, only to compose a command. A worker starts the
executors of the applications; they are in its process group and watch it, so they end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError, UsageError

from ._jars import ignore_progress
from ._java import LOGGING, class_path
from ._process import Process, free_ports, gather_or_cancel, make_directory, supervise
from ._service import Service
from ._spark_files import SparkFiles, prepare_spark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ._process import SupervisorClient

_MASTER_READY: Final = r"I have been elected leader! New state: ALIVE"
_WORKER_READY: Final = r"Successfully registered with master"
# Master and workers do little work, so the quick compiler (C1) is enough. Without maxRetries=0 Spark would use the next port
# if one is taken, and clients would not find it.
_JAVA_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dspark.port.maxRetries=0",
)
_SIZE: Final = re.compile(r"\d+[mg]$", re.IGNORECASE)


class SparkCluster:
    """A running Spark cluster: its master and its workers."""

    def __init__(self, master: Service, workers: list[Service], page: int) -> None:
        self.master: Final = master
        self.workers: Final = tuple(workers)
        self._page = page

    @property
    def url(self) -> str:
        """``spark://127.0.0.1:PORT``, for the ``master`` of a session."""
        return f"spark://{self.master.host}:{self.master.port}"

    @property
    def page(self) -> str:
        """The master's web page, which shows workers and applications."""
        return f"http://{self.master.host}:{self._page}"


@contextlib.asynccontextmanager
async def spark(
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    port: int | None = None,
    data_dir: str | Path | None = None,
    deadline: float = 120,
    progress: Callable[[str], None] | None = None,
) -> AsyncIterator[SparkCluster]:
    """Start a real Spark cluster on 127.0.0.1. It ends when the context ends, or when this process ends for any reason.

    It comes from the pyspark package and starts in about six seconds. ``aiokcc.spark.session(master=cluster.url)`` makes a
    session on it. That needs the Kafka connector, which this function fetches once (10 MB). No password protects the cluster:
    it is for tests, demos and trials.

    Killing a worker ends its executors too, as if its machine were gone. A master that was killed and started again does not
    know its earlier applications.

    Args:
        workers: the number of workers.
        cores: the number of cores of each worker. Spark only counts with it; nothing is bound to a core.
        memory: the memory of each worker, such as ``"2g"``. An executor takes 1g unless ``spark.executor.memory`` is set.
        port: the master's port; by default a free port.
        data_dir: the directory of logs and of the executors' files, which is kept; by default a temporary one that is removed
            at the end.
        deadline: seconds that each process may take to start; fetching jars does not count.
        progress: a function that is called with lines of text.

    Raises:
        LocalServiceError: there is no Java, the jars cannot be fetched, or a process did not start; in the last case the
            message has the end of its log.
    """
    _check(workers, cores, memory, port)
    progress = progress or ignore_progress
    files = await prepare_spark(progress)
    home, remove = make_directory("spark", data_dir)
    base = await asyncio.to_thread(_base_command, files, home)
    async with supervise(remove) as supervisor:
        attempts = 1 if port is not None else 5
        while True:
            attempts -= 1
            cluster = _prepare(supervisor, base, home, workers, cores, memory, port, deadline)
            try:
                await cluster.master.start()
                progress("The master is up; its workers register …")
                await gather_or_cancel(*(worker.start() for worker in cluster.workers))
                break
            except LocalServiceError as error:
                # Another process took a port after we had found it free: try others.
                if attempts <= 0 or "Address already in use" not in error.log:
                    raise
                await asyncio.gather(*(service.kill() for service in (cluster.master, *cluster.workers)))
        yield cluster


def _check(workers: int, cores: int, memory: str, port: int | None) -> None:
    if workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if cores < 1:
        raise UsageError(f"cores must be at least 1, not {cores}")
    if not _SIZE.match(memory):
        raise UsageError(f"memory must be a number with m or g, such as '1g', not {memory!r}")
    if port is not None and not 0 < port < 65_536:
        raise UsageError(f"port must be between 1 and 65535, not {port}")


def _base_command(files: SparkFiles, home: Path) -> list[str]:
    """Return the beginning of the command line, which master and workers share."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    logging = home / "log4j2.properties"
    logging.write_text(LOGGING)
    environment = {
        "SPARK_HOME": str(Path(spec.origin).parent),
        "SPARK_SCALA_VERSION": "2.13",
        "JAVA_HOME": str(files.java_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Executors write shuffle files here; it is in our directory so that they are removed even if executors are killed.
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_NO_DAEMONIZE": "1",
    }
    variables = [f"{name}={value}" for name, value in environment.items()]
    options = [*_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}"]
    # `env` sets the variables and becomes the Java process; the supervisor starts processes with its own environment.
    return ["env", *variables, files.java, *options, "-cp", class_path("*.jar")]


def _prepare(
    supervisor: SupervisorClient,
    base: list[str],
    home: Path,
    workers: int,
    cores: int,
    memory: str,
    port: int | None,
    deadline: float,
) -> SparkCluster:
    master_port, page, *ports = free_ports(2 + 2 * workers)
    master_port = port or master_port
    command = [*base, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    command += ["--port", str(master_port), "--webui-port", str(page)]
    process = Process(supervisor, "spark-master", command, home / "spark-master.log", _MASTER_READY)
    master = Service(process, master_port, deadline)
    started = []
    for number, (worker_port, worker_page) in enumerate(zip(ports[::2], ports[1::2], strict=True), start=1):
        name = f"spark-worker-{number}"
        command = [*base, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", str(worker_port)]
        command += ["--webui-port", str(worker_page), "--cores", str(cores), "--memory", memory]
        command += ["--work-dir", str(home / name), f"spark://127.0.0.1:{master_port}"]
        process = Process(supervisor, name, command, home / f"{name}.log", _WORKER_READY)
        started.append(Service(process, worker_port, deadline))
    return SparkCluster(master, started, page)
