"""The ZooKeeper that is measured, started for the run or the user's own, and its counters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from aiokcc import NoNodeError, StoreError, connect, local, open_store
from aiokcc.stores import ANY_VERSION, Session
from benchmarks.harness import BenchmarkError, note

__all__ = ["Counted", "Server", "server"]

_WARM_PERIODS: Final = 4000
"""After this many periods one costs the server a third of what the first ones cost; more do not lower it further."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of the servers: requests in, answers and events out, transactions, and CPU time in ns."""

    received: int
    sent: int
    writes: int
    cpu: int | None

    def __sub__(self, other: Counted) -> Counted:
        cpu = None if self.cpu is None or other.cpu is None else self.cpu - other.cpu
        return Counted(self.received - other.received, self.sent - other.sent, self.writes - other.writes, cpu)

    def __add__(self, other: Counted) -> Counted:
        cpu = None if self.cpu is None or other.cpu is None else self.cpu + other.cpu
        return Counted(self.received + other.received, self.sent + other.sent, self.writes + other.writes, cpu)


class Server:
    """The servers, by the addresses in their URL."""

    def __init__(self, addresses: str, root: str, pids: list[int]) -> None:
        self._addresses = addresses
        self.root = root
        self._pids = pids
        self._hosts = [_split(address) for address in addresses.rpartition("@")[2].split(",")]
        self._silent = False

    @property
    def hosts(self) -> str:
        """The addresses as ``host:port,host:port``, for other clients."""
        return ",".join(f"{host}:{port}" for host, port in self._hosts)

    def url(self, name: str) -> str:
        """Return the URL of a root of its own for a group of processes."""
        return f"zk://{self._addresses}{self.root}/{name}"

    async def counted(self) -> Counted | None:
        """Read the counters; None if the servers do not answer ``srvr``. They include the cost of reading them."""
        if self._silent:
            return None
        received = sent = writes = 0
        try:
            for host, port in self._hosts:
                answer = await _ask(host, port)
                received += _field(answer, r"Received: (\d+)")
                sent += _field(answer, r"Sent: (\d+)")
                writes = max(writes, _field(answer, r"Zxid: (0x[0-9a-f]+)"))
        except (OSError, TimeoutError, ValueError) as error:
            note(f"the servers do not report their counters ({error}): operations are not measured")
            self._silent = True
            return None
        return Counted(received, sent, writes, self._cpu())

    async def asking(self) -> Counted:
        """Measure how much reading the counters twice adds to them."""
        before, after = await self.counted(), await self.counted()
        return after - before if before is not None and after is not None else Counted(0, 0, 0, None)

    def _cpu(self) -> int | None:
        try:
            return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in self._pids) if self._pids else None
        except OSError:  # not on this system
            return None


def _split(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    return (host, int(port)) if separator else (address, 2181)


async def _ask(host: str, port: int) -> str:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"srvr")
            return (await reader.read()).decode()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _field(answer: str, pattern: str) -> int:
    found = re.search(pattern, answer)
    if found is None:
        raise ValueError(f"no {pattern.partition(':')[0]} in the answer to 'srvr': {answer.strip()[:80]!r}")
    return int(found[1], 0)


@contextlib.asynccontextmanager
async def server(url: str | None, *, warm: bool = False) -> AsyncIterator[Server]:
    """Give the server behind the URL, or start one on loopback. On the user's server our nodes are removed at the end.

    ``warm``: a server that was just started first runs some periods, until Java has compiled the code that is measured.
    """
    name = f"benchmark-{os.getpid()}-{secrets.token_hex(2)}"
    if url is None:
        note("starting ZooKeeper on loopback")
        async with local.zookeeper(optimise=True) as running:
            pids = [one.pid for one in running.servers if one.pid is not None]
            if warm:
                note("warming it up")
                await _work(running.url("warm"), _WARM_PERIODS)
            yield Server(running.connection, f"/{name}", pids)
        return
    scheme, separator, rest = url.partition("://")
    if scheme != "zk" or not separator:
        raise BenchmarkError(
            f"--url {url!r}: several processes meet at a real server only: zk://host:port[,host:port…]/root"
        )
    open_store(url)  # raises if the URL is invalid
    addresses, _, root = rest.partition("/")
    found = Server(addresses, f"{'/' + root.strip('/') if root.strip('/') else ''}/{name}", [])
    try:
        yield found
    finally:
        await _remove(f"zk://{addresses}{found.root}")


async def _work(url: str, periods: int) -> None:
    """Run two members with one partition each through this many periods."""

    async def member(number: int) -> None:
        topics, end = {"warm": 2}, periods * 1000
        async with connect(url, topics=topics, start=0, end=end, period=1000, member=f"m{number}") as group:
            async with group.gate("warm", number) as gate:
                for period in range(periods):
                    await gate.wait_until(period * 1000)
                gate.finish()

    async with asyncio.TaskGroup() as tasks:
        for number in range(2):
            tasks.create_task(member(number))


async def _remove(url: str) -> None:
    try:
        async with open_store(url).session() as session:
            await _remove_below(session, "")
    except StoreError as error:
        note(f"{url} could not be removed: {error}")


async def _remove_below(session: Session, path: str) -> None:
    with contextlib.suppress(NoNodeError):
        for child in await session.children(path):
            await _remove_below(session, f"{path}/{child}" if path else child)
        await session.delete(path, ANY_VERSION)
