"""Decodes Avro in Confluent's wire format, as a function for Spark's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["decoder"]


def decoder(registry: str, wanted: dict[str, Any], columns: str) -> Callable[[str], Any]:
    """Return a function that makes a struct of a column of bytes.

    Each record is read with the schema it was written with, which the registry has under the record's number, into the wanted
    schema: fields are matched by name, and those that the record lacks get their default. A number always stands for the same
    schema, so a batch that is computed again has the same result; each worker asks for a number once.

    Args:
        registry: the registry's URL.
        wanted: the schema that the result has, with a default for each field that was added later.
        columns: the same as Spark writes it, such as ``"country string, cents long"``.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def decode(values: Any) -> Any:
        # Everything is imported and kept in here: the function is sent to the workers by value.
        import io
        import json
        import urllib.request

        import fastavro
        import pandas as pd

        reader = fastavro.parse_schema(wanted)
        names = [field["name"] for field in wanted["fields"]]
        schemas: dict[int, Any] = {}
        for series in values:
            rows: list[Any] = []
            for value in series:
                if value is None:  # a tombstone
                    rows.append(dict.fromkeys(names))
                    continue
                if len(value) < 5 or value[0] != 0:
                    raise ValueError(f"a value begins with {bytes(value[:5])!r}: it is not in Confluent's wire format")
                number = int.from_bytes(value[1:5])
                if number not in schemas:
                    with urllib.request.urlopen(f"{registry}/schemas/ids/{number}", timeout=30) as answer:
                        schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
                rows.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[number], reader))
            yield pd.DataFrame(rows, columns=names)

    from collections.abc import Iterator

    import pandas as pd

    decode.__annotations__ = {"values": Iterator[pd.Series], "return": Iterator[pd.DataFrame]}
    return F.pandas_udf(decode, columns)  # type: ignore[call-overload, no-any-return]
