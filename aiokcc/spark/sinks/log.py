"""The log of manifests: how a batch becomes visible on a POSIX file system: as a whole, once, and only by the right driver.

::

    out/revenue/
        20260101T000000Z.parquet …                  further names of published files, one for each period
        _aiokcc/owner.json                          the pipeline that the directory belongs to
        _aiokcc/attempts/00000003-5d1e0c/           the driver at work; it writes its manifests here first
        _aiokcc/data/00000012-00000003-5d1e0c-0/    the files of batch 12, as attempt 3 wrote them; never changed again
        _aiokcc/log/00000012.json                   the manifest of batch 12: from now on it is published
        _aiokcc/log/restate-00000002.json           computed again: these periods replace the published ones

**A batch is published if and only if its manifest is in the log.** Everything else follows:

- *Atomic, once.* The manifest gets its name in the log by ``link``, which fails if the name exists. The files in it were
  synced before, and are never changed after.
- *Fenced.* The manifest is linked **from the attempt's own directory**. A driver that takes over removes the directories of all
  smaller attempts (:mod:`aiokcc.spark.sinks.attempts`), and reads the log only after that. A driver that was suspended
  meanwhile cannot write a manifest: its directory is gone, and is never made again. It cannot link a manifest that it wrote
  before: that has no name any more, and a file without a name cannot be linked. The kernel checks that under the file's lock,
  so it holds even for a link that is under way.
- *Restatements.* They are numbered by themselves, and are published as batches are: by the link of a manifest, from the
  attempt's own directory. The log before and after the link gives the old or the new periods, never a mixture. The files of the
  old periods stay, for readers that have listed them and to be read as of an earlier moment.
- *Left-overs.* The files of a dead attempt are in directories with its number. A driver that begins removes those of smaller
  attempts that the log does not name. It never removes those of a greater attempt.
- *Further names.* When a batch is published, each of its files gets a second name in ``out/revenue``, after its period, for
  people and for tools that read a whole directory. After a crash some may be missing; the next driver adds them. They never
  show anything that is not published. A restatement replaces them file by file: to see all of it at once, read the log.
- *From scratch.* A reset moves what readers see **into the attempt's own directory**, which a driver that takes over removes
  before it reads the log. So a driver that was suspended in its reset cannot remove what its successor publishes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiokcc.errors import CoordinationError, CorruptNodeError, FencedError, PipelineMismatchError, UsageError
from aiokcc.spark.batch import Batch
from aiokcc.spark.function_version import FunctionVersion
from aiokcc.spark.published import Published
from aiokcc.spark.sinks.attempts import ENDED, Attempts
from aiokcc.spark.sinks.disk import Disk
from aiokcc.spark.sinks.file_system import check_file_system
from aiokcc.spark.sinks.further_names import FURTHER, FurtherNames
from aiokcc.spark.sinks.manifest import FORMAT, DataFile, Manifest, PublishedPeriod
from aiokcc.spark.sinks.places import unusable
from aiokcc.spark.sinks.states import States

__all__ = ["HOME", "MANIFEST", "RESTATE", "Log"]

HOME: Final = "_aiokcc"
_RESTATE: Final = "restate-"
MANIFEST: Final = re.compile(r"(\d{8,})\.json")
RESTATE: Final = re.compile(r"restate-(\d{8,})\.json")
_STAGED: Final = re.compile(r"((?:restate-)?\d{8,})-(\d{8,})-[0-9a-f]+-\d+")
_GONE: Final = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


class Log:
    """The log in one directory, seen by one driver."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.home = root, root / HOME
        self._disk = disk or Disk()
        self._data, self._log = self.home / "data", self.home / "log"
        self._attempts = Attempts(root, self.home / "attempts", self._disk)
        self._attempt, self._name = 0, ""
        self._next, self._total, self._tries = 0, 0, 0
        self.schema: str | None = None
        """The columns of all that is published, as Spark's JSON; None while there are none."""
        self.states: States | None = None
        """The states that are kept after the last published batch; None if there is none."""
        self.function = FunctionVersion()
        """The function that computes the batches."""
        self._restates: tuple[Manifest, ...] = ()
        self._names = FurtherNames(root, self.home, self._disk)
        self.run: str | None = None
        """The run that the results belong to; None if it is not known."""
        self.where: str | None = None
        """The root of that run in the store."""

    @property
    def is_without_rows(self) -> bool:
        """True if no file is published."""
        return self._total == 0

    # A driver begins

    def begin(self, pipeline: str, attempt: int) -> None:
        """Take over from every smaller attempt. Raise FencedError if a greater one, or another with this number, is there."""
        try:
            self._check_place()
            for path in (self.home, self._attempts.path, self._data, self._log):
                self._disk.ensure_directory(path)
            name = self._attempts.make(attempt)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise UsageError(unusable(self.root, "ParquetSink", error)) from error
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            raise UsageError(unusable(self.root, "ParquetSink", error)) from error
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
        if self.states is not None:
            self.states.remove_dropped(self.home, self._disk)
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

        Raise UsageError if the directory is new and the file system lacks something that publishing needs.
        """
        owner, draft = self.home / "owner.json", self._attempts.path / name / "owner.json"
        if not owner.exists():
            check_file_system(self.root, draft.parent, self._disk)
            self._disk.write(draft, json.dumps({"format": FORMAT, "pipeline": pipeline}).encode() + b"\n")
            with contextlib.suppress(FileExistsError):
                self._disk.link(draft, owner)
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
        shown = {name for name in self._disk.names(self.root) if FURTHER.fullmatch(name)}
        numbers = self._numbers()
        if numbers != list(range(len(numbers))):
            missing = next(number for number, found in enumerate([*numbers, -1]) if number != found)
            raise CoordinationError(f"{self._log} has no {missing:08d}.json, but later ones: a manifest was deleted")
        self._next, self._total, self.schema, self.states = len(numbers), 0, None, None
        self._restates = ()
        if not numbers:
            for name in sorted(shown):  # left by a reset that did not complete
                self._disk.remove(self.root / name)
            return
        last = self._read(numbers[-1])
        self._refuse_other_run(last)  # the other run may have published since we looked
        self._restates = self._read_restates()
        self._total, self.states = last.total_files, last.states
        self.schema = self._latest_schema(numbers)
        if self._restates and self._restates[-1].after >= last.number:
            self._total = self._restates[-1].total_files
        # Usually only names of what was published last are missing. If power was lost, others may be; their number shows it.
        latest = Published((last,), self._restates)
        if len(shown) < self._total - sum(len(period.files) for period in latest.periods()):
            latest = Published(tuple(map(self._read, numbers)), self._restates)
        self._names.show(latest.periods(), self._attempts.path / self._name, replaced=bool(self._restates))

    def _latest_schema(self, numbers: list[int]) -> str | None:
        """Return the columns that were published last. A batch without records has none: those before it count."""
        for number in reversed(numbers):
            later = [restate.schema for restate in self._restates if restate.after == number]
            schema = next((one for one in reversed(later) if one is not None), None) or self._read(number).schema
            if schema is not None:
                return schema
        return None

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for match in map(MANIFEST.fullmatch, self._disk.names(self._log)) if match)

    def _read_restates(self) -> tuple[Manifest, ...]:
        names = sorted(name for name in self._disk.names(self._log) if RESTATE.fullmatch(name))
        if names != [_restate_name(number) for number in range(len(names))]:
            raise CoordinationError(
                f"{self._log} does not have all of {len(names)} restatements: a manifest was deleted"
            )
        return tuple(Manifest.decode(os.fspath(self._log / name), (self._log / name).read_bytes()) for name in names)

    def _clear_data(self, attempt: int) -> None:
        """Remove what smaller attempts staged and no driver published, and what a reset left."""
        for name in self._disk.names(self.home):
            if name.startswith(ENDED):
                self._disk.remove_tree(self.home / name)
        by_number: dict[int, list[tuple[int, str]]] = {}
        restated = {_directory(file) for manifest in self._restates for p in manifest.periods for file in p.files}
        for match in filter(None, map(_STAGED.fullmatch, self._disk.names(self._data))):
            if match[1].startswith(_RESTATE):
                if int(match[2]) < attempt and match[0] not in restated:
                    self._disk.remove_tree(self._data / match[0])
                continue
            by_number.setdefault(int(match[1]), []).append((int(match[2]), match[0]))
        for number, staged in by_number.items():
            # A published batch was staged. So a single directory is the published one, and its manifest need not be read.
            if number < self._next and len(staged) == 1:
                continue
            for former, name in staged:
                if former < attempt and (number >= self._next or not self._is_named(number, name)):
                    self._disk.remove_tree(self._data / name)

    def _is_named(self, number: int, directory: str) -> bool:
        """Return whether the manifest of a batch names files of this directory."""
        manifest = self._read(number)
        files = [file for period in manifest.periods for file in period.files]
        if manifest.states is not None:
            files += manifest.states.last.files
        return any(_directory(file) == directory for file in files)

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
            raise self._ended()

    def _ended(self) -> FencedError | PipelineMismatchError:
        """Return the error for a driver whose attempt has no directory any more."""
        if (self.home / "owner.json").exists():
            return self._attempts.fenced(self._attempt)
        return self._gone("the directory was removed while this driver was at work")

    def make_stage(self, batch: Batch) -> Path:
        """Make a directory for the files of a batch, where no reader looks, and remove the one of a failed job before it."""
        self.check()  # publishing would be refused as well; this saves the job
        stem = f"{_RESTATE if batch.replaces else ''}{batch.number:08d}-{self._name}"
        # A restatement may have several jobs; and publishing may have failed after the link, with the files in the log.
        if self._tries and batch.replaces is None and self.find(batch.number) is None:
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

    def publish(
        self,
        batch: Batch,
        files: dict[int, tuple[DataFile, ...]],
        schema: str | None = None,
        states: States | None = None,
    ) -> Manifest:
        """Put the batch into the log, and return its manifest. ``files`` are the synced files by the start of their period.

        ``states`` are those that are kept from now on, if the batch has one; otherwise those before stay. If the batch is in
        the log already, nothing changes. Raise FencedError if a later attempt has begun.
        """
        while batch.number > self._next and (found := self.find(self._next)) is not None:
            # A call of ours that failed after the link.
            self._next, self._total, self.states = self._next + 1, found.total_files, found.states
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
            function=self.function,
            run=self.run,
            root=self.where,
            total_files=self._total + sum(map(len, files.values())),
            periods=_periods_of(batch, files),
            states=states or (None if self.states is None else self.states.carried()),
            published_at=time.time_ns() // 1_000_000,
            late=batch.late,
        )
        manifest = self._link(manifest, f"{batch.number:08d}.json", batch)
        self._next, self._total, self._tries = batch.number + 1, manifest.total_files, 0
        self.schema = manifest.schema or self.schema
        self.states = manifest.states
        if self.states is not None:
            self.states.remove_dropped(self.home, self._disk)
        self._names.show(manifest.periods, self._attempts.path / self._name)
        return manifest

    def _link(self, manifest: Manifest, name: str, batch: Batch) -> Manifest:
        """Give the manifest its name in the log, and return it. Raise FencedError if a later attempt has begun."""
        draft = self._attempts.path / self._name / name
        try:
            self._disk.remove(draft)  # after an earlier call that failed, it may be the published file itself
            self._disk.write(draft, manifest.encode())
            self._disk.link(draft, self._log / name)
        except FileExistsError:
            # It is ours if an earlier call failed after the link; otherwise it belongs to a driver that began after us.
            manifest = Manifest.decode(os.fspath(self._log / name), (self._log / name).read_bytes())
            if manifest.attempt != self._attempt or not manifest.is_of(batch):
                raise self._attempts.fenced(self._attempt) from None
        except OSError as error:
            if error.errno in _GONE:
                raise self._ended() from error
            raise
        self._disk.sync(self._log)
        self._disk.remove(draft)
        return manifest

    # Periods that are computed again

    def published(self) -> Published:
        """Return all that is in the log. Call it only while no other driver can publish, or the parts may not fit."""
        try:
            return Published(tuple(map(self._read, self._numbers())), self._read_restates())
        except FileNotFoundError as error:
            raise self._gone(f"{error.filename} is missing") from error

    def replace(
        self, batch: Batch, files: Mapping[int, tuple[DataFile, ...]], after: int, schema: str | None = None
    ) -> Manifest:
        """Put a restatement into the log: from now on its periods replace the published ones between its bounds.

        ``after`` is the number of the last published batch. A second call changes nothing. Raise FencedError if a later attempt
        has begun.
        """
        assert batch.replaces is not None
        start, end = batch.replaces
        old = [period for period in self.published().periods() if start <= period.start < end]
        manifest = Manifest(
            pipeline=batch.pipeline,
            number=batch.number,
            attempt=self._attempt,
            schema=schema,
            function=self.function,
            run=self.run,
            root=self.where,
            total_files=self._total + sum(map(len, files.values())) - sum(len(period.files) for period in old),
            periods=_periods_of(batch, files),
            published_at=time.time_ns() // 1_000_000,
            late=batch.included,
            replaces=batch.replaces,
            after=after,
        )
        manifest = self._link(manifest, _restate_name(batch.number), batch)
        self._restates, self._total, self._tries = self._read_restates(), manifest.total_files, 0
        self.schema = manifest.schema or self.schema
        self._names.show(manifest.periods, self._attempts.path / self._name, replaced=True)
        return manifest

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

    def check_reset(self, pipeline: str) -> bool:
        """Return whether there is anything to reset. Raise UsageError if the directory belongs to somebody else."""
        if not (self.home / "owner.json").exists():
            self._check_place()
            return False
        self._check_owner(pipeline)
        return True

    def reset(self, pipeline: str, attempt: int) -> None:
        """End every smaller attempt and delete all that they have published. The directory still belongs to the pipeline.

        Raise FencedError if a greater attempt has begun, before or meanwhile: what that one publishes stays.
        """
        if not self.check_reset(pipeline):
            return
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
                if FURTHER.fullmatch(shown):
                    self._attempts.take(self.root / shown, name)
        except FileNotFoundError as error:
            raise self._attempts.fenced(attempt) from error
        finally:
            self._attempts.end(name)


def _restate_name(number: int) -> str:
    return f"{_RESTATE}{number:08d}.json"


def _directory(file: DataFile) -> str:
    """Return the name of the directory that the file was staged in."""
    return file.path.split("/")[1]


def _periods_of(batch: Batch, files: Mapping[int, tuple[DataFile, ...]]) -> tuple[PublishedPeriod, ...]:
    return tuple(
        PublishedPeriod(period.start, period.end, period.ranges, files.get(period.start, ()))
        for period in batch.periods
    )
