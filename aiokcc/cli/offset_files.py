"""The JSON and CSV files that ``aiokcc offsets export`` writes and ``import`` reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokcc.core.committed_offset import CommittedOffset, check_offset
from aiokcc.core.partitions import Partition, parse_topics
from aiokcc.core.periods import format_time
from aiokcc.errors import UsageError

__all__ = ["FORMAT", "as_csv", "as_entry", "as_json", "read"]

FORMAT: Final = 1
"""The version of the JSON. It changes when a field is removed or changes its meaning; new fields may be added at any time."""
_COLUMNS: Final = ("topic", "partition", "offset", "at", "by")


def as_entry(partition: Partition, commit: CommittedOffset | None) -> dict[str, Any]:
    """Return the committed offset of one partition as plain data."""
    at = None if commit is None else commit.at
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "offset": None if commit is None else commit.offset,
        "at": at,
        "time": None if at is None else format_time(at),
        "by": None if commit is None else commit.by,
        "generation": None if commit is None else commit.generation,
        "run": None if commit is None else commit.run,
    }


def as_json(where: str, storage: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the object that ``--json`` and ``export`` print."""
    return json.dumps({"format": FORMAT, "where": where, "storage": storage, "offsets": list(entries)}, indent=2)


def as_csv(commits: Mapping[Partition, CommittedOffset]) -> str:
    """Return CSV: a header, and a line for each partition."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_entry(p, commit) for p, commit in sorted(commits.items()))
    return text.getvalue()


def read(text: str, name: str) -> dict[Partition, int]:
    """Return the offsets of a file. Raises UsageError with the entry or line of the first invalid one."""
    entries = _from_json(text, name) if text.lstrip()[:1] in {"{", "["} else _from_csv(text, name)
    result: dict[Partition, int] = {}
    for place, entry in entries:
        try:
            (partition,) = parse_topics({entry["topic"]: [entry["partition"]]})
            offset = check_offset(entry["offset"])
        except KeyError as error:
            raise UsageError(
                f"{name}, {place}: {error.args[0]} is missing; expected topic, partition, offset"
            ) from None
        except UsageError as error:
            raise UsageError(f"{name}, {place}: {error}") from None
        if partition in result:
            raise UsageError(f"{name}, {place}: {partition} occurs twice")
        result[partition] = offset
    if not result:
        raise UsageError(f"{name} holds no offsets; `aiokcc offsets export` writes such a file")
    return result


def _from_json(text: str, name: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
    if isinstance(raw, dict):
        if raw.get("format", FORMAT) != FORMAT:
            raise UsageError(f"{name} has the format {raw['format']!r}; this version reads {FORMAT}")
        raw = raw.get("offsets")
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise UsageError(
            f'{name} is not a list of offsets; expected {{"offsets": [{{"topic", "partition", "offset"}}, …]}}'
        )
    return [(f"entry {n}", entry) for n, entry in enumerate(raw, 1)]


def _from_csv(text: str, name: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise UsageError(f"{name} is neither JSON nor CSV: {error}") from None
    found: list[tuple[str, Mapping[str, Any]]] = []
    for line, row in enumerate(rows, 2):
        entry: dict[str, Any] = {key: row[key] for key in ("topic", "partition", "offset") if row.get(key) is not None}
        for key in ("partition", "offset"):
            value = entry.get(key, "")
            if value.isascii() and value.isdecimal():
                entry[key] = int(value)
        found.append((f"line {line}", entry))
    return found
