"""One process of a host, as the process that serves sees it: what it has opened, and what it asks for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import anyio

from aiokcc.core.partitions import Partition
from aiokcc.core.report import Report
from aiokcc.errors import AiokccError, CorruptNodeError, PartitionOwnedError, UsageError
from aiokcc.runtime.gate import Gate
from aiokcc.runtime.host.channel import Message, ProcessChannel, encode_error
from aiokcc.runtime.host.session import decode_op, encode_change, encode_node
from aiokcc.stores.port import STOP_FRACTION, Watch, boottime

if TYPE_CHECKING:
    from aiokcc.runtime.host.service import HostService

__all__ = ["VERSION", "Client"]

log = logging.getLogger("aiokcc.runtime")

VERSION: Final = 1
"""The version of the messages. A process of another version is not served: it serves itself."""


class Client:
    """One process of the host, at the process that serves."""

    def __init__(self, service: HostService, channel: ProcessChannel, number: int) -> None:
        self.service = service
        self.channel = channel
        self.number = number
        self.name = f"process {number}"
        self.pid: int | None = None
        self.heard_at = boottime()
        self.lease = float("-inf")
        """The latest time until which the client may start records, as it was told."""
        self.gates: dict[Partition, Gate] = {}
        self._report: Report | None = None
        self._opening: dict[Partition, tuple[anyio.CancelScope, anyio.Event]] = {}
        """The tasks that hold the gates."""
        self._watches: dict[int, Watch] = {}
        self._gone = False
        channel.received, channel.closed = self._received, self.gone

    # -- to the client --------------------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Sends a message, and with it the time until which the client may start records ([host lease])."""
        session = self.service.session
        stop = min(session.stop_at, self.heard_at + session.timeout * STOP_FRACTION)
        self.lease = max(self.lease, stop)
        self.channel.send({**message, "stop": stop} if stop > float("-inf") else message)

    def dismiss(self) -> None:
        """Tells the client that the session is over. It closes the connection when it has stopped."""
        self.channel.send({"over": True})

    def gone(self) -> None:
        """Releases the partitions of a client that is gone: at once if it is dead or has stopped, else when its lease ends."""
        if self._gone:
            return
        self._gone = True
        self.service.left(self)
        if self.service.ending:
            return
        for watch in self._watches.values():
            watch.close()
        self.service.spawn(self._release_all)

    async def _release_all(self) -> None:
        if not self.channel.ended_by_peer:
            await anyio.sleep(max(0.0, self.lease - boottime()))
        await self._release([*self.gates, *self._opening])

    # -- from the client --------------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> None:
        if self._gone or self.service.ending:
            return
        self.heard_at = boottime()
        try:
            self._take(message)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            log.error("%s: %s sent what is no message: %r", self.service.name, self.name, error)
            self.channel.close()

    def _take(self, message: Message) -> None:
        service = self.service
        if "report" in message:
            try:
                report = Report.decode("the report of a process", message["report"].encode(), self._report)
            except CorruptNodeError as error:
                log.error("%s: %s: %s", service.name, self.name, error)
                return
            if report is not None:
                self._report = report
                service.mirror(report, self)
        elif "ping" in message:
            self.tell({"pong": True})
        elif "open" in message:
            for (topic, number), skips in zip(message["open"], message["skips"], strict=True):
                service.spawn(self._open, Partition(topic, number), skips)
        elif "call" in message:
            service.spawn(self._answer, message)
        elif "watch" in message:
            self._watch(message)
        elif "hello" in message:
            if message["version"] != VERSION:
                self.channel.send({"welcome": None})
                self.channel.close()
                return
            self.name, self.pid = message["hello"], message["pid"]
            service.joined(self)
            self.tell(service.welcome())

    async def _open(self, partition: Partition, skips: bool) -> None:
        """Claims a partition for the client, and keeps its gate until it is released."""
        service, member = self.service, self.service.member
        over = anyio.Event()
        gate = Gate(member, partition)
        gate.skips_closed = skips
        with anyio.CancelScope() as scope:
            self._opening[partition] = (scope, over)
            try:
                await self._wait_for_other(partition)
                service.holders[partition] = self
                self.gates[partition] = gate
                await member.open(gate)
                while gate.failure is None:
                    await gate.signal.wait()
                raise gate.failure
            except AiokccError as error:
                if self.gates.get(partition) is gate:
                    del self.gates[partition], service.holders[partition]
                self.tell({"refused": list(partition), "error": encode_error(error)})
        self._opening.pop(partition, None)
        over.set()

    async def _wait_for_other(self, partition: Partition) -> None:
        """Waits while another process of the host has the partition, as long as for one of another host."""
        service = self.service
        timeout = service.member.options.claim_timeout
        if timeout is None:
            timeout = 2 * service.session.timeout
        with anyio.move_on_after(timeout):
            while partition in service.holders:
                await service.freed.wait()
        holder = service.holders.get(partition)  # it may have been released in the moment when the time was over
        if holder is not None:
            raise PartitionOwnedError(str(partition), f"{holder.name} of this host", timeout)

    async def _release(self, partitions: list[Partition]) -> None:
        """Releases partitions on which the client starts nothing any more."""
        service = self.service
        for scope, over in [self._opening[p] for p in partitions if p in self._opening]:
            scope.cancel()
            await over.wait()
        mine = [p for p in partitions if self.gates.pop(p, None) is not None]
        async with anyio.create_task_group() as tasks:
            for partition in mine:
                tasks.start_soon(service.member.release_partition, partition)
        for partition in mine:
            if service.holders.get(partition) is self:
                del service.holders[partition]
        freed, service.freed = service.freed, anyio.Event()
        freed.set()

    async def _answer(self, message: Message) -> None:
        number, verb, arguments = message["call"], message["verb"], message["with"]
        try:
            value = await self._carry_out(verb, arguments)
        except (AiokccError, TypeError, ValueError) as error:
            self.tell({"answer": number, "error": encode_error(error)})
        else:
            self.tell({"answer": number, "value": value})

    async def _carry_out(self, verb: str, arguments: list[Any]) -> Any:
        session = self.service.session
        match verb:
            case "release":
                await self._release([Partition(*p) for p in arguments])
                return None
            case "find" | "get":
                return encode_node(await getattr(session, verb)(*arguments))
            case "create":
                path, data, ephemeral, sequential = arguments
                return await session.create(path, data.encode("latin-1"), ephemeral=ephemeral, sequential=sequential)
            case "set":
                return await session.set(arguments[0], arguments[1].encode("latin-1"), arguments[2])
            case "commit":
                return await session.commit(*map(decode_op, arguments))
            case "children" | "delete" | "ensure" | "sync":
                return await getattr(session, verb)(*arguments)
        raise UsageError(f"there is no call {verb!r}")

    def _watch(self, message: Message) -> None:
        number, verb, path = message["watch"], message["do"], message["path"]
        watch = self._watches.get(number)
        if verb == "close":
            if watch is not None:
                self._watches.pop(number).close()
            return
        if watch is None:
            watch = self._watches[number] = self.service.session.watch()
            self.service.spawn(self._observe, number, watch)
        match verb:
            case "add":
                watch.add(path)
            case "add_children":
                watch.add_children(path)
            case "add_created":
                watch.add_created(path)
            case _:
                watch.remove(path)
                self.tell({"watch": number, "removed": path})

    async def _observe(self, number: int, watch: Watch) -> None:
        try:
            while True:
                changes = await watch.changes()
                self.tell({"watch": number, "changes": list(map(encode_change, changes))})
        except AiokccError:
            return  # the watch was closed, or the session is over, which the client learns
