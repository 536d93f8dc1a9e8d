"""Tests of what may happen to the columns of a table from batch to batch, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aiokcc.errors import UsageError
from aiokcc.spark.sinks.columns import added_fields, all_nullable, check_schema_change, merge_columns


def struct(**fields: Any) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()],
    }


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapped(kind: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}


def merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        merge_columns(None if old is None else json.dumps(old), json.dumps(new), "out/t")
    )
    return found


BASE = struct(period="timestamp", country="string", cents="long")


def test_first_result_decides_the_columns():
    assert merged(None, BASE) == BASE


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (BASE, struct(cents="long", period="timestamp", country="string"), BASE),
        (
            BASE,
            struct(vat="double", period="timestamp", country="string", cents="long"),
            struct(period="timestamp", country="string", cents="long", vat="double"),
        ),
        (struct(o=struct(a="long")), struct(o=struct(b="long", a="long")), struct(o=struct(a="long", b="long"))),
        (
            struct(o=array(struct(a="long"))),
            struct(o=array(struct(a="long", b="long"))),
            struct(o=array(struct(a="long", b="long"))),
        ),
    ],
    ids=["another order", "a column", "a field of a struct", "a field in an array"],
)
def test_columns_are_added_behind_those_that_are_there(old, new, expected):
    assert merged(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (BASE, struct(period="timestamp", country="string", cents="double"), "'cents' is double, and was long"),
        (BASE, struct(period="timestamp", country="string"), "'cents' is missing"),
        (
            BASE,
            struct(period="timestamp", country="string", amount="long"),
            r"'cents' is missing \(renamed to 'amount'\?\)",
        ),
        (
            BASE,
            struct(period="timestamp", country="string", Cents="double"),
            r"'cents' is missing \(renamed to 'Cents'\?\)",
        ),
        (
            BASE,
            struct(period="timestamp", country="string", cents="long", CENTS="long"),
            "'CENTS' differs from 'cents' in upper and lower case only",
        ),
        (BASE, struct(period="timestamp", cents="string"), "'country' is missing; 'cents' is string, and was long"),
        (struct(o=struct(a="long")), struct(o=struct(a="string")), "'o.a' is string, and was long"),
        (struct(o=array(struct(a="long"))), struct(o=array(struct(b="long"))), r"'o\[\].a' is missing"),
        (
            struct(o=mapped(struct(a="long"))),
            struct(o=mapped(struct(a="long", b="long"))),
            "'o' is map<string,struct<a:long,b:long>>, and was map<string,struct<a:long>>",
        ),
        (struct(o=array("long")), struct(o="long"), "'o' is long, and was array<long>"),
    ],
)
def test_other_changes_are_refused_with_all_columns_named(old, new, sentence):
    with pytest.raises(UsageError, match=sentence) as refused:
        merged(old, new)
    assert "out/t" in str(refused.value)
    assert 'schema="replace"' in str(refused.value)


def test_nullability_is_no_change_and_an_added_part_may_be_null():
    strict = json.loads(json.dumps(struct(o=array(struct(a="long")))).replace("true", "false"))
    assert merged(struct(o=array(struct(a="long"))), strict) == struct(o=array(struct(a="long")))
    assert json.loads(all_nullable(json.dumps(strict))) == struct(o=array(struct(a="long")))


def test_only_what_is_new_is_added():
    old, new = struct(a="long", o=struct(x="long")), struct(a="long", o=struct(x="long", y="long"), b="long")
    names = [field["name"] for field in added_fields(json.dumps(old), json.dumps(new))]
    assert names == ["o", "b"]


def test_unknown_word_for_schema_is_refused():
    with pytest.raises(UsageError, match="schema is 'merge'; expected \"add\""):
        check_schema_change("merge")
