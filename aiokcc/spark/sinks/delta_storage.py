"""Small files beside those of a Delta table that is in no directory of this machine, through deltalake's file system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["read_bytes", "write_bytes"]

_STEP: Final = 1 << 20


def write_bytes(uri: str, options: Mapping[str, str] | None, name: str, data: bytes) -> None:
    """Write a file below the table's URI, or replace it."""
    # deltalake's stream takes bytes alone. Arrow makes some of what fits into its own buffer.
    with _file_system(uri, options).open_output_stream(name, buffer_size=2 * _STEP) as stream:
        for start in range(0, len(data), _STEP):
            stream.write(data[start : start + _STEP])


def read_bytes(uri: str, options: Mapping[str, str] | None, name: str) -> bytes:
    """Return the content of a file below the table's URI. Raise FileNotFoundError if there is none."""
    with _file_system(uri, options).open_input_file(name) as file:
        return bytes(file.read())


def _file_system(uri: str, options: Mapping[str, str] | None) -> Any:
    import pyarrow.fs
    from deltalake.fs import DeltaStorageHandler

    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(uri, dict(options or {})))
