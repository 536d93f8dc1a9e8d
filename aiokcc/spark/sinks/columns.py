"""The columns of a table over time: new ones may be added, and everything else is refused before anything is published.

Schemas are in Spark's JSON, which Delta's log uses as well. An added column is null in older files, whichever program reads
them. A changed type cannot be read from older files; a column that is missing is taken for a mistake, and so is a renamed
one, which looks like one missing and one added. Structs, and structs in arrays, are treated in the same way: fields may be
added to them. Inside a map nothing may change, because not every reader of Delta can fill in what older files lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from aiokcc.errors import UsageError

__all__ = ["SchemaChange", "added_fields", "all_nullable", "check_schema_change", "merge_columns", "merge_parts"]

SchemaChange = Literal["add", "replace"]
"""The changes a sink accepts: ``"add"``: new columns; ``"replace"``: any other columns as well, while there are no rows."""
_MARKS: Final = ("nullable", "containsNull", "valueContainsNull", "metadata")


def check_schema_change(value: object) -> SchemaChange:
    """Return the argument ``schema`` of a sink. Raise UsageError if it is neither of the two."""
    if value == "add":
        return "add"
    if value == "replace":
        return "replace"
    raise UsageError(f'schema is {value!r}; expected "add" (new columns are added), or "replace"')


def merge_columns(there: str | None, result: str, table: str) -> str:
    """Return the table's columns after a result was added: those it has, in their order, and then the new ones.

    ``there`` is None if the table has no columns yet. Raise UsageError if the result changes or lacks a column that the table
    has; it names all of them.
    """
    if there is None:
        return result
    old, new = json.loads(there), json.loads(result)
    problems = list(_problems(old["fields"], new["fields"]))
    if problems:
        raise UsageError(
            f"the columns of the result do not fit those of {table}: {'; '.join(problems)}. Nothing was published. Columns may "
            f"be added, but not changed, removed or renamed: give the function the column back, beside new ones; or compute "
            f'all periods again, with from_scratch=True and schema="replace"; or write to a new table under another name'
        )
    return json.dumps({**old, "fields": _merged(old["fields"], new["fields"])})


def merge_parts(parts: Sequence[str], table: str) -> str | None:
    """Return the table's columns after results that are published together; None without any. Raise UsageError as above."""
    result = None
    for part in parts:
        result = merge_columns(result, part, table)
    return result


def all_nullable(schema: str) -> str:
    """Return a schema whose columns, and all parts of them, may be null and have no metadata: an older file may lack them."""
    return json.dumps(_nullable(json.loads(schema)))


def _nullable(part: Any) -> Any:
    if isinstance(part, dict):
        marks: dict[str, Any] = {mark: {} if mark == "metadata" else True for mark in _MARKS if mark in part}
        return {key: _nullable(value) for key, value in part.items()} | marks
    return [_nullable(value) for value in part] if isinstance(part, list) else part


def added_fields(there: str, merged: str) -> list[dict[str, Any]]:
    """Return the columns that are new or have new fields, as they are in the merged schema."""
    old = {field["name"]: _bare(field["type"]) for field in json.loads(there)["fields"]}
    return [field for field in json.loads(merged)["fields"] if old.get(field["name"]) != _bare(field["type"])]


def _bare(kind: Any) -> Any:
    """Return a type without the marks that its parts may be null, to be compared."""
    if isinstance(kind, dict):
        return {key: _bare(value) for key, value in kind.items() if key not in _MARKS}
    return [_bare(value) for value in kind] if isinstance(kind, list) else kind


def _problems(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], prefix: str = "") -> Iterator[str]:
    """Yield a sentence for each column that is missing or changed."""
    given = {field["name"]: field["type"] for field in new}
    had = {field["name"] for field in old}
    unknown = {name: kind for name, kind in given.items() if name not in had}
    for field in old:
        name, kind = field["name"], field["type"]
        if name in given:
            yield from _type_problems(prefix + name, kind, given[name])
        else:
            yield f"{prefix + name!r} is missing{_renamed(name, kind, unknown)}"
    kept = {name.lower(): name for name in had & given.keys()}
    for name in unknown:
        if name.lower() in kept:
            yield f"{prefix + name!r} differs from {prefix + kept[name.lower()]!r} in upper and lower case only"


def _type_problems(name: str, old: Any, new: Any) -> Iterator[str]:
    if _is_a("struct", old, new):
        yield from _problems(old["fields"], new["fields"], f"{name}.")
    elif _is_a("array", old, new):
        yield from _type_problems(f"{name}[]", old["elementType"], new["elementType"])
    elif _bare(old) != _bare(new):
        yield f"{name!r} is {_text(new)}, and was {_text(old)}"


def _renamed(name: str, kind: Any, unknown: dict[str, Any]) -> str:
    """Return the question whether a missing column was renamed, if a new one looks like it."""
    alike = [other for other, its in unknown.items() if _bare(its) == _bare(kind)]
    same = [other for other in unknown if other.lower() == name.lower()]
    found = same or (alike if len(alike) == 1 else [])
    return f" (renamed to {found[0]!r}?)" if found else ""


def _is_a(kind: str, *types: Any) -> bool:
    return all(isinstance(each, dict) and each.get("type") == kind for each in types)


def _merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    given = {field["name"]: field for field in new}
    had = {field["name"] for field in old}
    kept = [{**field, "type": _merged_type(field["type"], given[field["name"]]["type"])} for field in old]
    return [*kept, *(field for field in new if field["name"] not in had)]


def _merged_type(old: Any, new: Any) -> Any:
    if _is_a("struct", old):
        return {**old, "fields": _merged(old["fields"], new["fields"])}
    if _is_a("array", old):
        return {**old, "elementType": _merged_type(old["elementType"], new["elementType"])}
    return old


def _text(kind: Any) -> str:
    """Return a type as SQL writes it: ``array<struct<id:long>>``."""
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "struct":
        fields = ",".join(f"{field['name']}:{_text(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    return str(kind["type"])
