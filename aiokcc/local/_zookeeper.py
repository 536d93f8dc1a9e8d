"""A real ZooKeeper on loopback: one server, or an ensemble."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError, UsageError

from ._java import LOGGING, class_path, find_java
from ._process import Process, free_ports, gather_or_cancel, make_directory, supervise
from ._service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ._process import SupervisorClient

MINIMUM_JAVA: Final = 11
MIN_SESSION_MS: Final = 1_000
MAX_SESSION_MS: Final = 60_000

_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-buffer-*.jar",
    "netty-codec-4*.jar",
    "netty-common-*.jar",
    "netty-handler-4*.jar",
    "netty-resolver-4*.jar",
    "netty-transport-4*.jar",
    "netty-transport-classes-epoll-4*.jar",  # these two are for TLS
    "netty-transport-native-unix-common-4*.jar",
)

# Only the first compiler (C1): with few cores latencies vary less. One run of 6300 sequential writes each, on two cores: with
# fsync the median of the last 3000 was 612 µs (both compilers: 589), the 99th percentile 1.0 ms (2.6); without fsync the
# median was 532 µs (453).
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    # With the few connections of one machine, the selector thread also serves the requests: handing each to a worker thread
    # costs a quarter of its time.
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=0",
)
_QUICK: Final = "-XX:TieredStopAtLevel=1"

# A single server logs the first line when it serves; a member of an ensemble logs the second when it has joined a quorum.
_READY_ALONE: Final = r"ContainerManager: Using "
_READY_IN_QUORUM: Final = r"Peer state changed: (leading|following) - broadcast"


class ZooKeeperServer(Service):
    """One ZooKeeper server on loopback. It keeps its port and its data when it is restarted."""

    def __init__(self, process: Process, port: int, data: Path, deadline: float) -> None:
        super().__init__(process, port, deadline)
        self._data = data

    @property
    def connection(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Start the server, unless it runs, and wait until it serves.

        A member of an ensemble serves once it is part of a quorum: start a majority together, not one after the other.
        Raises LocalServiceError if it does not start. Cancelling leaves it running until its context ends.
        """
        await super().start()
        # The data directory in the answer shows that it is from this server and not from another one on the same port.
        answer = await self.command("conf")
        if f"dataDir={self._data.as_posix()}" not in answer:
            raise self._process.error(
                f"logged that it serves, but on {self.connection} the answer is {answer.strip()[:200]!r}"
            )

    async def command(self, word: str, *, deadline: float = 10) -> str:
        """Send a four letter word (``ruok``, ``srvr``, ``mntr`` …) and return the answer. Works on any event loop.

        Raises LocalServiceError if the server does not answer within `deadline` seconds.
        """
        try:
            async with asyncio.timeout(deadline):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                try:
                    writer.write(word.encode())
                    answer = await reader.read()
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except TimeoutError:
            raise LocalServiceError(f"{self.name} did not answer {word!r} within {deadline:g} s") from None
        except OSError as error:
            raise LocalServiceError(f"{self.name} did not answer {word!r}: {error}") from error
        return answer.decode()

    async def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics of ``mntr``, such as ``zk_packets_received``. This request itself counts as a packet."""
        pairs = (line.split("\t", 1) for line in (await self.command("mntr")).splitlines() if "\t" in line)
        return {key: _number(value) for key, value in pairs}


class ZooKeeper:
    """A running ZooKeeper: a single server or an ensemble."""

    def __init__(self, servers: list[ZooKeeperServer]) -> None:
        self.servers: Final = tuple(servers)

    @property
    def connection(self) -> str:
        """All servers as ``host:port,host:port``."""
        return ",".join(server.connection for server in self.servers)

    def url(self, root: str = "") -> str:
        """Return the store URL of `root`: ``zk://127.0.0.1:PORT/root``."""
        return f"zk://{self.connection}/{root.lstrip('/')}"

    @property
    def server(self) -> ZooKeeperServer:
        """The only server. Raises UsageError for an ensemble, which has `servers`."""
        if len(self.servers) != 1:
            raise UsageError(f"this is an ensemble of {len(self.servers)}: choose one of its `servers`")
        return self.servers[0]

    async def command(self, word: str) -> str:
        """Send a four letter word to the only server."""
        return await self.server.command(word)

    async def metrics(self) -> dict[str, int | float | str]:
        """Return the metrics of the only server."""
        return await self.server.metrics()

    async def leader(self) -> ZooKeeperServer:
        """Return the server that leads the ensemble now, or the only server. Raises LocalServiceError if none leads."""
        for server in self.servers:
            if server.pid is not None:
                answer = await server.command("srvr")
                if "Mode: leader" in answer or "Mode: standalone" in answer:
                    return server
        raise LocalServiceError("no server leads")


@contextlib.asynccontextmanager
async def zookeeper(
    *,
    servers: int = 1,
    port: int | None = None,
    data_dir: str | Path | None = None,
    durable: bool = True,
    tick_ms: int = 200,
    heap: str = "256m",
    optimise: bool = False,
    settings: Mapping[str, object] | None = None,
    deadline: float = 60,
) -> AsyncIterator[ZooKeeper]:
    """Start a real ZooKeeper on 127.0.0.1. It ends when the context ends, or when this process ends for any reason.

    It comes from the jars of the pyspark package (``pip install 'aiokcc[local]'``) and starts in about half a second. It
    grants session timeouts from 1 s to 60 s. No password protects it: it is for tests, demos and trials.

    Args:
        servers: the number of servers; more than 1 form an ensemble.
        port: the client port of the first server; the other servers use the next ports. By default free ports.
        data_dir: the directory of data and logs, which is kept; by default a temporary one that is removed at the end.
        durable: False omits the fsync of each write. This is faster on slow disks, but a power cut may lose writes.
        tick_ms: ZooKeeper's unit of time; sessions expire up to one tick late.
        heap: the maximum size of each server's Java heap.
        optimise: use Java's optimising compiler, as a server in production does: for measurements and long runs. By default
            the quick one is used, which starts sooner and varies less in the first minute.
        settings: settings that are added to those of ``zoo.cfg``, such as ``{"secureClientPort": 2281}``.
        deadline: seconds that a server may take to start.

    Raises:
        LocalServiceError: there is no Java, the jars are missing, or a server did not start; in the last case the message has
            the end of its log.
    """
    if servers < 1:
        raise UsageError(f"servers must be at least 1, not {servers}")
    if tick_ms < 1:
        raise UsageError(f"tick_ms must be at least 1, not {tick_ms}")
    if port is not None and not 0 < port <= 65_536 - servers:
        raise UsageError(f"port must be between 1 and {65_536 - servers}, not {port}")
    java = await asyncio.to_thread(find_java, MINIMUM_JAVA)
    compiler = [] if optimise else [_QUICK]
    jvm = [java, f"-Xmx{heap}", *_JAVA_OPTIONS, *compiler, f"-Dzookeeper.forceSync={'yes' if durable else 'no'}"]
    jvm += ["-cp", class_path(*_JARS)]
    home, remove = make_directory("zookeeper", data_dir)
    async with supervise(remove) as supervisor:
        attempts = 1 if port is not None else 5
        while True:
            attempts -= 1
            ensemble = _prepare(supervisor, jvm, home, servers, port, tick_ms, settings or {}, deadline)
            try:
                await _start_all(ensemble)
                break
            except LocalServiceError as error:
                # Another process took a port after we had found it free: try others.
                if attempts <= 0 or "Address already in use" not in error.log:
                    raise
                await asyncio.gather(*(server.kill() for server in ensemble))
        yield ZooKeeper(ensemble)


async def _start_all(ensemble: list[ZooKeeperServer]) -> None:
    await gather_or_cancel(*(server.start() for server in ensemble))


def _prepare(
    supervisor: SupervisorClient,
    jvm: list[str],
    home: Path,
    servers: int,
    port: int | None,
    tick_ms: int,
    given: Mapping[str, object],
    deadline: float,
) -> list[ZooKeeperServer]:
    """Write each server's configuration, with free ports unless `port` is given, and return the servers."""
    ports = free_ports(3 * servers)
    client_ports = ports[:servers] if port is None else list(range(port, port + servers))
    peers = [
        f"server.{number}=127.0.0.1:{quorum}:{election};127.0.0.1:{client}"
        for number, (client, quorum, election) in enumerate(
            zip(client_ports, ports[servers : 2 * servers], ports[2 * servers :], strict=True), start=1
        )
    ]
    ensemble = []
    for number, client_port in enumerate(client_ports, start=1):
        alone = servers == 1
        name = "zookeeper" if alone else f"zookeeper-{number}"
        directory = home if alone else home / name
        data = directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        config, logging = directory / "zoo.cfg", directory / "log4j2.properties"
        settings: dict[str, object] = {
            "dataDir": data.as_posix(),
            "tickTime": tick_ms,
            "minSessionTimeout": MIN_SESSION_MS,
            "maxSessionTimeout": MAX_SESSION_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        if alone:
            settings |= {"clientPort": client_port, "clientPortAddress": "127.0.0.1"}
        else:
            (data / "myid").write_text(f"{number}\n")
            # Both are in ticks: 10 s to join the quorum; after 3 s without an answer a follower or a frozen leader is dropped.
            settings |= {"initLimit": max(10_000 // tick_ms, 2), "syncLimit": max(3_000 // tick_ms, 2)}
        settings |= given
        lines = [f"{key}={value}" for key, value in settings.items()] + ([] if alone else peers)
        config.write_text("\n".join(lines) + "\n")
        logging.write_text(LOGGING)
        main = "server.ZooKeeperServerMain" if alone else "server.quorum.QuorumPeerMain"
        command = [
            *jvm[:1],
            f"-Dlog4j2.configurationFile={logging}",
            *jvm[1:],
            f"org.apache.zookeeper.{main}",
            str(config),
        ]
        ready = _READY_ALONE if alone else _READY_IN_QUORUM
        process = Process(supervisor, name, command, directory / "zookeeper.log", ready)
        ensemble.append(ZooKeeperServer(process, client_port, data, deadline))
    return ensemble


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
