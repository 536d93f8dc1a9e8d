"""A real ZooKeeper on loopback: one server, or an ensemble."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokcc.errors import LocalServiceError, UsageError

from ._java import LOGGING, class_path, find_java
from ._process import Process, free_ports, gather_or_cancel, supervise
from ._service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
)

# The first compiler only: with few cores it is steadier. One run of 6300 sequential writes each, on two cores: with fsync the
# median of the last 3000 was 612 µs (second compiler: 589), the 99th percentile 1.0 ms (2.6); without fsync 532 µs (453).
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    # The few connections of one machine are read and answered by the thread that sees them: handing each request to another
    # costs a quarter of its time.
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.nio.numWorkerThreads=0",
)
_QUICK: Final = "-XX:TieredStopAtLevel=1"

# A single server logs this when it already serves; a member of an ensemble when it has joined a quorum.
_READY_ALONE: Final = r"ContainerManager: Using "
_READY_IN_QUORUM: Final = r"Peer state changed: (leading|following) - broadcast"


class ZooKeeperServer(Service):
    """One ZooKeeper server on loopback, always on the same port and with the same data, however often it is restarted."""

    def __init__(self, process: Process, port: int, data: Path, deadline: float) -> None:
        super().__init__(process, port, deadline)
        self._data = data

    @property
    def connection(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Start the server again and wait until it serves; a running one is left alone.

        A member of an ensemble serves once it is part of a quorum: start a majority together, not one after the other.
        """
        await super().start()
        # The log has said so; now ask. That the answer names our data tells that it is not from somebody else on this port.
        answer = await self.command("conf")
        if f"dataDir={self._data.as_posix()}" not in answer:
            raise self._process.error(
                f"says that it is up, but on {self.connection} the answer is {answer.strip()[:200]!r}"
            )

    async def command(self, word: str, *, deadline: float = 10) -> str:
        """Send a four letter word (``ruok``, ``srvr``, ``mntr`` …) and return the answer. Usable from any event loop."""
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
        """Return what ``mntr`` counts, such as ``zk_packets_received``; numbers as numbers. Asking counts as a packet too."""
        pairs = (line.split("\t", 1) for line in (await self.command("mntr")).splitlines() if "\t" in line)
        return {key: _number(value) for key, value in pairs}


class ZooKeeper:
    """A running ZooKeeper: its servers, and how to reach them."""

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
        """The only server; an ensemble has `servers`."""
        if len(self.servers) != 1:
            raise UsageError(f"this is an ensemble of {len(self.servers)}: choose one of its `servers`")
        return self.servers[0]

    async def command(self, word: str) -> str:
        """Send a four letter word to the only server."""
        return await self.server.command(word)

    async def metrics(self) -> dict[str, int | float | str]:
        """Return what the only server counts."""
        return await self.server.metrics()

    async def leader(self) -> ZooKeeperServer:
        """Return the server that leads the ensemble now (the only one, if it stands alone)."""
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
    deadline: float = 60,
) -> AsyncIterator[ZooKeeper]:
    """Start a real ZooKeeper on 127.0.0.1 and end it with the context, or with this process, whatever way that ends.

    It comes from the jars inside the pyspark package (``pip install 'aiokcc[local]'``) and takes about half a second.
    Session timeouts from 1 s to 60 s are granted. Nothing is protected by a password: it is for tests, demos and trials.

    Args:
        servers: 1, or the size of an ensemble.
        port: the port for clients (an ensemble: of the first server, the next ones follow); by default free ones are picked.
        data_dir: where data and logs go and stay; by default a temporary directory that is removed at the end.
        durable: False leaves out the fsync of each write: faster where disks are slow, and a power cut may lose writes.
        tick_ms: ZooKeeper's unit of time; sessions expire up to one tick late.
        heap: the largest Java heap of each server.
        optimise: use Java's optimising compiler, as a server in production does: for measurements and long runs. By default
            the quick one is used, which starts sooner and has the steadier first minute.
        deadline: seconds that a server may take to start.

    Raises:
        LocalServiceError: no Java, no jars, or a server did not start; then the end of its log is in the message.
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
    if data_dir is None:
        home = remove = Path(tempfile.mkdtemp(prefix="aiokcc-zookeeper-"))
    else:
        home, remove = Path(data_dir).absolute(), None
        home.mkdir(parents=True, exist_ok=True)
    async with supervise(remove) as supervisor:
        attempts = 1 if port is not None else 5
        while True:
            attempts -= 1
            ensemble = _prepare(supervisor, jvm, home, servers, port, tick_ms, deadline)
            try:
                await _start_all(ensemble)
                break
            except LocalServiceError as error:
                # Somebody took a port between our look and the server's bind: take others.
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
    deadline: float,
) -> list[ZooKeeperServer]:
    """Write each server's configuration, with fresh ports where none is prescribed."""
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
        settings = {
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
            # Limits are counted in ticks: 10 s to join, 3 s behind before a follower, or a frozen leader, is given up.
            settings |= {"initLimit": max(10_000 // tick_ms, 2), "syncLimit": max(3_000 // tick_ms, 2)}
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
