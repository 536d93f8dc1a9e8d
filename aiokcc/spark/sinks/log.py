"""The log of manifests: how a batch becomes visible on a POSIX file system: as a whole, once, and only by the right driver.

::

    out/revenue/
        20260101T000000Z.parquet …                  further names of published files, one for each period
        _aiokcc/owner.json                          the pipeline that the directory belongs to
        _aiokcc/attempts/00000003-5d1e0c/           the driver at work; it writes its manifests here first
        _aiokcc/data/00000012-00000003-5d1e0c-0/    the files of batch 12, as attempt 3 wrote them; never changed again
        _aiokcc/log/00000012.json                   the manifest of batch 12: from now on it is published

**A batch is published if and only if its manifest is in the log.** Everything else follows:

- *Atomic, once.* The manifest gets its name in the log by ``link``, which fails if the name exists. The files in it were
  synced before, and are never changed after.
- *Fenced.* The manifest is linked **from the attempt's own directory**. A driver that takes over removes the directories of all
  smaller attempts (:mod:`aiokcc.spark.sinks.attempts`), and reads the log only after that. A driver that was suspended
  meanwhile cannot write a manifest: its directory is gone, and is never made again. It cannot link a manifest that it wrote
  before: that has no name any more, and a file without a name cannot be linked. The kernel checks that under the file's lock,
  so it holds even for a link that is under way.
- *Left-overs.* The files of a dead attempt are in directories with its number. A driver that begins removes those of smaller
  attempts that the log does not name. It never removes those of a greater attempt.
- *Further names.* When a batch is published, each of its files gets a second name in ``out/revenue``, after its period, for
  people and for tools that read a whole directory. After a crash some may be missing; the next driver adds them. They never
  show anything that is not published.
- *From scratch.* A reset moves what readers see **into the attempt's own directory**, which a driver that takes over removes
  before it reads the log. So a driver that was suspended in its reset cannot remove what its successor publishes.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from pathlib import Path
from typing import Final

from aiokcc.errors import CoordinationError, CorruptNodeError, FencedError, PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.sinks.attempts import ENDED, Attempts
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.manifest import FORMAT, DataFile, Manifest, PublishedPeriod, period_name

__all__ = ["HOME", "MANIFEST", "Log"]

HOME: Final = "_aiokcc"
_logger = logging.getLogger("aiokcc.spark")
MANIFEST: Final = re.compile(r"(\d{8,})\.json")
_STAGED: Final = re.compile(r"(\d{8,})-(\d{8,})-[0-9a-f]+-\d+")
_FURTHER: Final = re.compile(r"\d+(T\d{6}(\.\d{3})?Z)?(-\d{5})?\.parquet")
_GONE: Final = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS)


class Log:
    """The log in one directory, seen by one driver."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.home = root, root / HOME
        self._disk = disk or Disk()
        self._data, self._log = self.home / "data", self.home / "log"
        self._attempts = Attempts(root, self.home / "attempts", self._disk)
        self._attempt, self._name = 0, ""
        self._next, self._total, self._tries = 0, 0, 0
        self.run: str | None = None
        """The run that the results belong to; None if it is not known."""
        self.where: str | None = None
        """The root of that run in the store."""

    # A driver begins

    def begin(self, pipeline: str, attempt: int) -> None:
        """Take over from every smaller attempt. Raise FencedError if a greater one, or another with this number, is there."""
        self._check_place()
        for path in (self.home, self._attempts.path, self._data, self._log):
            self._disk.ensure_directory(path)
        name = self._attempts.make(attempt)
        try:
            self._own(pipeline, name)
            self._refuse_other_run()  # before its drivers are fenced out
            self._attempts.fence(attempt, name)
        except (UsageError, FencedError):
            self._disk.remove_tree(self._attempts.path / name)
            raise
        except FileNotFoundError as error:
            if self._attempts.exists(name):
                raise
            raise self._attempts.fenced(attempt) from error
        self._attempt, self._name, self._tries = attempt, name, 0
        self._disk.ensure_directory(self._log)  # a reset that we have just stopped may have moved it
        self._read_end()
        self._clear_data(attempt)
        for path in (self._attempts.path, self.home, self.root, self.root.parent):
            self._disk.sync(path)

    def _check_place(self) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is a file; a ParquetSink needs a directory")
        if (self.home / "owner.json").exists() or not self.root.exists():
            return
        foreign = [name for name in self._disk.names(self.root) if name != HOME]
        if foreign:
            raise UsageError(
                f"{self.root} holds {foreign[0]!r}, which no ParquetSink has written; choose a directory that is new or empty"
            )

    def _own(self, pipeline: str, name: str) -> None:
        """Record the pipeline that the directory belongs to, or check that it is ours.

        Raise UsageError if the file system has no hard links.
        """
        owner, draft = self.home / "owner.json", self._attempts.path / name / "owner.json"
        if not owner.exists():
            self._disk.write(draft, json.dumps({"format": FORMAT, "pipeline": pipeline}).encode() + b"\n")
            try:
                self._disk.link(draft, owner)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise UsageError(
                    f"{self.root}: this file system has no hard links ({error.strerror}), by which a ParquetSink publishes; "
                    f"choose a directory on another one, or a DeltaSink"
                ) from error
            self._disk.remove(draft)
        self._check_owner(pipeline)

    def _check_owner(self, pipeline: str) -> None:
        path = self.home / "owner.json"
        data = path.read_bytes()
        try:
            owner = json.loads(data)
            form, theirs = owner["format"], owner["pipeline"]
        except (ValueError, KeyError, TypeError):
            raise CorruptNodeError(str(path), data, "the format and the pipeline's name as JSON") from None
        if form != FORMAT:
            raise UsageError(f"{self.root} has the format {form}; this version of aiokcc writes {FORMAT}")
        if theirs != pipeline:
            raise PipelineMismatchError(
                f"{self.root} holds the results of the pipeline {theirs!r}, and this is {pipeline!r}; "
                f"choose another directory"
            )

    def _refuse_other_run(self, last: Manifest | None = None) -> None:
        """Raise PipelineMismatchError if what was published last here comes from another run of the pipeline."""
        if last is None:
            try:
                numbers = self._numbers()
            except FileNotFoundError:  # a reset has just moved the log; the driver that begins after it looks again
                return
            last = self.find(numbers[-1]) if numbers else None
        if last is None or last.run is None or self.run is None or last.run == self.run:
            return
        raise PipelineMismatchError(
            f"{self.root} holds the results of the pipeline {last.pipeline!r} under {last.root} (run {last.run[:8]}), up to "
            f"batch {last.number}, and this is its run under {self.where} (run {self.run[:8]}); choose another directory, or "
            f"give from_scratch=True to replace them"
        )

    def _read_end(self) -> None:
        """Find the end of the log, and add further names that are missing.

        Raise CoordinationError if the log has a gap, PipelineMismatchError if it belongs to another run.
        """
        # In this order: a file gets its further name after its manifest, so the log read after the names has it.
        shown = {name for name in self._disk.names(self.root) if _FURTHER.fullmatch(name)}
        numbers = self._numbers()
        if numbers != list(range(len(numbers))):
            missing = next(number for number, found in enumerate([*numbers, -1]) if number != found)
            raise CoordinationError(f"{self._log} has no {missing:08d}.json, but later ones: a manifest was deleted")
        self._next, self._total = len(numbers), 0
        if not numbers:
            for name in sorted(shown):  # left by a reset that did not complete
                self._disk.remove(self.root / name)
            return
        last = self._read(numbers[-1])
        self._refuse_other_run(last)  # the other run may have published since we looked
        self._total = last.total_files
        # Usually only names of the last batch are missing. If power was lost, others may be; the number of names shows it.
        for number in (
            [last.number] if len(shown) >= last.total_files - sum(len(p.files) for p in last.periods) else numbers
        ):
            self._show(self._read(number))

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for match in map(MANIFEST.fullmatch, self._disk.names(self._log)) if match)

    def _clear_data(self, attempt: int) -> None:
        """Remove what smaller attempts staged and no driver published, and what a reset left."""
        for name in self._disk.names(self.home):
            if name.startswith(ENDED):
                self._disk.remove_tree(self.home / name)
        by_number: dict[int, list[tuple[int, str]]] = {}
        for match in filter(None, map(_STAGED.fullmatch, self._disk.names(self._data))):
            by_number.setdefault(int(match[1]), []).append((int(match[2]), match[0]))
        for number, staged in by_number.items():
            # A published batch was staged. So a single directory is the published one, and its manifest need not be read.
            if number < self._next and len(staged) == 1:
                continue
            for former, name in staged:
                if former < attempt and (number >= self._next or not self._names(number, name)):
                    self._disk.remove_tree(self._data / name)

    def _names(self, number: int, directory: str) -> bool:
        """Return whether the manifest of a batch names files of this directory."""
        files = (file for period in self._read(number).periods for file in period.files)
        return any(file.path.startswith(f"data/{directory}/") for file in files)

    # A batch

    def find(self, number: int) -> Manifest | None:
        """Return the manifest of a batch; None if it is not published."""
        try:
            return self._read(number)
        except FileNotFoundError:
            return None

    def is_published(self, batch: Batch) -> bool:
        """Return whether the batch is in the log. Raise PipelineMismatchError if its number belongs to another batch there."""
        found = self.find(batch.number)
        if found is None:
            return False
        if not found.is_of(batch):
            raise PipelineMismatchError(
                f"{self.root}: batch {batch.number} is published there with other periods or offsets than the store has "
                f"recorded: these are results of another run; from_scratch=True starts again, or choose another directory"
            )
        return True

    def check_published(self, number: int) -> None:
        """Raise PipelineMismatchError if this batch is not in the log, or comes from another run. -1 stands for no batch."""
        if number < 0:
            return
        found = self.find(number)
        if found is None:
            raise self._gone(f"the store has recorded batch {number} as published, and the log does not have it")
        self._refuse_other_run(found)

    def _gone(self, what: str) -> PipelineMismatchError:
        return PipelineMismatchError(
            f"{self.root}: {what}: results that the store has recorded are not there any more; put the directory back, or "
            f"give from_scratch=True to compute all of them again"
        )

    def check(self) -> None:
        """Raise FencedError if a later attempt has begun. One may begin right after this; only publishing is certain."""
        if not self._attempts.exists(self._name):
            raise self._attempts.fenced(self._attempt)

    def make_stage(self, batch: Batch) -> Path:
        """Make a directory for the files of a batch, where no reader looks, and remove the one of a failed job before it."""
        self.check()  # publishing would be refused as well; this saves the job
        stem = f"{batch.number:08d}-{self._name}"
        if self._tries:
            self._disk.remove_tree(self._data / f"{stem}-{self._tries - 1}")
        place = self._data / f"{stem}-{self._tries}"
        self._tries += 1
        self._disk.make_directory(place)
        return place

    def sync_stage(self, place: Path) -> None:
        """Make the names of staged files durable. Their writers have made the content durable."""
        try:
            self._disk.sync(place)
        except FileNotFoundError:
            self.check()  # a driver that has taken over has removed it
            raise
        self._disk.sync(self._data)

    def publish(self, batch: Batch, files: dict[int, tuple[DataFile, ...]], schema: str | None = None) -> Manifest:
        """Put the batch into the log, and return its manifest. ``files`` are the synced files by the start of their period.

        If the batch is in the log already, nothing changes. Raise FencedError if a later attempt has begun.
        """
        while batch.number > self._next and (found := self.find(self._next)) is not None:
            self._next, self._total = self._next + 1, found.total_files  # a call of ours that failed after the link
        if batch.number < self._next:
            self.is_published(batch)
            return self._read(batch.number)
        if batch.number > self._next:
            raise self._gone(f"the log ends before batch {self._next}, and batch {batch.number} cannot follow")
        manifest = Manifest(
            pipeline=batch.pipeline,
            number=batch.number,
            attempt=self._attempt,
            schema=schema,
            run=self.run,
            root=self.where,
            total_files=self._total + sum(map(len, files.values())),
            periods=tuple(
                PublishedPeriod(period.start, period.end, period.ranges, files.get(period.start, ()))
                for period in batch.periods
            ),
        )
        draft = self._attempts.path / self._name / f"{batch.number:08d}.json"
        try:
            self._disk.write(draft, manifest.encode())
            self._disk.link(draft, self._log / draft.name)
        except FileExistsError:
            # It is ours if an earlier call failed after the link; otherwise it belongs to a driver that began after us.
            manifest = self._read(batch.number)
            if manifest.attempt != self._attempt or not manifest.is_of(batch):
                raise self._attempts.fenced(self._attempt) from None
        except OSError as error:
            if error.errno in _GONE:
                raise self._attempts.fenced(self._attempt) from error
            raise
        self._disk.sync(self._log)
        self._next, self._total, self._tries = batch.number + 1, manifest.total_files, 0
        self._show(manifest)
        self._disk.remove(draft)
        return manifest

    def _show(self, manifest: Manifest) -> None:
        """Give published files their further names. If that fails, log a warning: they are published nevertheless."""
        for period in manifest.periods:
            for part, file in enumerate(period.files):
                suffix = f"-{part:05d}" if len(period.files) > 1 else ""
                shown = self.root / f"{period_name(period.start)}{suffix}.parquet"
                try:
                    self._show_file(self.home / file.path, shown)
                except OSError as error:
                    if error.errno not in _GONE:  # gone: the result was reset meanwhile
                        _logger.warning(
                            "%s has got no second name (%s); aiokcc.spark.files finds the file", shown, error
                        )
                    return

    def _show_file(self, source: Path, shown: Path) -> None:
        try:
            self._disk.link(source, shown)
        except FileExistsError:
            if not source.samefile(shown):  # a reset left this name
                self._disk.remove(shown)
                self._disk.link(source, shown)

    def _read(self, number: int) -> Manifest:
        path = self._log / f"{number:08d}.json"
        return Manifest.decode(os.fspath(path), path.read_bytes())

    # From scratch

    def last_attempt(self) -> int:
        """Return the greatest number of an attempt that has left anything in the directory; 0 if there is none."""
        if not (self.home / "owner.json").exists():
            return 0
        staged = [int(match[2]) for match in map(_STAGED.fullmatch, self._disk.names(self._data)) if match]
        return max((*self._attempts.numbers(), *staged), default=0)

    def reset(self, pipeline: str, attempt: int) -> None:
        """End every smaller attempt and delete all that they have published. The directory still belongs to the pipeline.

        Raise FencedError if a greater attempt has begun, before or meanwhile: what that one publishes stays.
        """
        if not (self.home / "owner.json").exists():
            self._check_place()
            return
        self._check_owner(pipeline)
        name = self._attempts.make(attempt)
        try:
            self._attempts.fence(attempt, name)
            self._attempts.take(self._log, name)  # readers see nothing from here on
            self._disk.sync(self.home)
            # First the files, then their further names: a driver that still runs then has no file to name.
            for staged in self._disk.names(self._data):
                match = _STAGED.fullmatch(staged)
                if match is None or int(match[2]) < attempt:
                    self._disk.remove_tree(self._data / staged)
            for shown in self._disk.names(self.root):
                if _FURTHER.fullmatch(shown):
                    self._attempts.take(self.root / shown, name)
        except FileNotFoundError as error:
            raise self._attempts.fenced(attempt) from error
        finally:
            self._attempts.end(name)
