"""A Parquet file that a manifest names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DataFile"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file: its path below the place of the manifest, and the rows, size and hash that it must have."""

    path: str
    rows: int
    size: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest holds of it."""
        return {"path": self.path, "rows": self.rows, "bytes": self.size, "sha256": self.sha256}

    @classmethod
    def from_json(cls, content: Any) -> DataFile:
        """Read what :meth:`to_json` returned. Raise KeyError or TypeError for anything else."""
        return cls(content["path"], content["rows"], content["bytes"], content["sha256"])
