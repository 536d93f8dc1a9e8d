"""The supervisor: a small program that runs service processes and kills them when its parent ends.

A service started directly would outlive a parent that is killed with SIGKILL. So the parent starts this program, holds the
write end of its standard input, and asks it to start the services. When the parent ends, for any reason, the kernel closes
the pipe. The supervisor then reads end-of-file, kills every process group it started, removes the directory it was given,
and exits.

It reads commands and writes events, one JSON object per line::

    {"start": "zk-1", "command": ["java", …], "log": "…/zk-1.log", "ready": "regular expression", "relay": true}
    {"kill": "zk-1"}

    {"name": "zk-1", "event": "started", "pid": 4711}
    {"name": "zk-1", "event": "ready"}                      a line of output matched the expression for the first time
    {"name": "zk-1", "event": "line", "text": "…"}          a line of output; sent only with "relay": true
    {"name": "zk-1", "event": "exited", "code": -9}
    {"name": "zk-1", "event": "failed", "reason": "…"}      the command could not be run

The supervisor copies each service's output to its log, so that a parent that is busy or stopped cannot block a service on a
full pipe. Three more cases are handled:

- A child that the parent *forked* keeps the pipe open after the parent's death. Where the system has process file
  descriptors, the supervisor watches the parent process too.
- Ctrl-C in the terminal must not reach the services before the parent has stopped using them, so each has its own session.
- If the supervisor itself is killed, Linux kills its children (PR_SET_PDEATHSIG, which fires when the *thread* that forked
  ends; here that is the main thread, which lives as long as the process).

The parent runs it by path with ``python -I -S``, and it imports only the standard library. It starts in about 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1


def death_signal_hook() -> Callable[[], None] | None:
    """Return a function that a child calls between fork and exec so that the kernel kills it with its parent.

    Return None on a system without such a signal.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Look it up before the fork: the child of a threaded process must not take the loader's locks.
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return set_death_signal


def read_commands(parent: int) -> Iterator[dict[str, Any]]:
    """Yield commands until the pipe is closed or the parent is gone."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    parent_fd = None
    if sys.platform.startswith("linux") and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # an old kernel, or the parent has ended: the pipe closes then
            parent_fd = os.pidfd_open(parent)
            poll.register(parent_fd, select.POLLIN)
    buffer = b""
    while True:
        readable = {fd for fd, _ in poll.poll()}
        if parent_fd in readable:
            return
        received = os.read(0, 65536)
        if not received:
            return
        *lines, buffer = (buffer + received).split(b"\n")
        yield from map(json.loads, lines)


class Supervisor:
    """Starts and kills named processes and copies their output."""

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.copy_threads: list[threading.Thread] = []
        self.output_lock = threading.Lock()
        self.set_death_signal = death_signal_hook()

    def send_event(self, name: str, event: str, **facts: object) -> None:
        line = json.dumps({"name": name, "event": event, **facts}) + "\n"
        with self.output_lock, contextlib.suppress(OSError):  # the parent may be gone
            os.write(1, line.encode())

    def start(self, name: str, command: list[str], log: str, ready: str, relay: bool) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=-1,
                start_new_session=True,
                preexec_fn=self.set_death_signal,  # noqa: PLW1509 - it makes one system call and takes no lock
            )
        except OSError as error:
            self.send_event(name, "failed", reason=str(error))
            return
        self.processes[name] = process
        self.send_event(name, "started", pid=process.pid)
        thread = threading.Thread(
            target=self.copy_output, args=(name, process, log, re.compile(ready.encode()), relay), daemon=True
        )
        self.copy_threads.append(thread)
        thread.start()

    def copy_output(
        self, name: str, process: subprocess.Popen[bytes], log: str, ready: re.Pattern[bytes], relay: bool
    ) -> None:
        """Copy the output to the log and send the events ready and exited. Each process has a thread that runs this."""
        assert process.stdout is not None
        announced = False
        with process.stdout, Path(log).open("ab", buffering=0) as file:
            for line in process.stdout:
                # Continue if the disk is full, or the service would block on its output.
                with contextlib.suppress(OSError):
                    file.write(line)
                if relay:
                    self.send_event(name, "line", text=line.decode(errors="replace").rstrip())
                if not announced and ready.search(line):
                    announced = True
                    self.send_event(name, "ready")
        self.send_event(name, "exited", code=process.wait())

    def kill(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def shut_down(self) -> None:
        for name in self.processes:
            self.kill(name)
        for thread in self.copy_threads:
            thread.join(10)


def main(parent: int, directory: str | None) -> None:
    """Carry out commands until the parent ends; then kill all processes and remove `directory`."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    supervisor = Supervisor()
    try:
        for command in read_commands(parent):
            match command:
                case {"start": name, "command": argv, "log": log, "ready": ready, "relay": relay}:
                    supervisor.start(name, argv, log, ready, relay)
                case {"kill": name}:
                    supervisor.kill(name)
    finally:
        supervisor.shut_down()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
