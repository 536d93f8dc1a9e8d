"""A fingerprint of what a function does: a digest of the analysed plan of its result, the same in every session.

A plan is full of numbers that differ from session to session, or from call to call: those of its columns, of common tables
and of the variables of lambda functions, and the seeds of random numbers. They are replaced by the order in which they appear,
or left out. The frame that the function is given is a leaf: which offsets it reads does not count.

The plan does not hold the code of Python UDFs, nor the content of tables. A change there is not noticed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from aiokcc.spark.analysed_plan import LINEAGE, PlanNode, parse_plan

__all__ = ["GIVEN", "fingerprint"]

GIVEN: Final = "aiokcc_given"
"""The name under which a frame that the function is given stands in the plan."""
_LEFT_OUT: Final = frozenset(
    ["metadata", "qualifier", "explicitMetadata", "nonInheritableMetadataKeys", "seed", "randomSeed", LINEAGE]
)
_NAMES_ONLY: Final = ("SubqueryAlias", "View")
"""Operators that give their child another name. Some names are made up by PySpark, anew for each call."""
_RANDOM: Final = ("Rand", "Randn", "Uuid", "Shuffle", "Uniform", "RandStr")


def fingerprint(*plans: PlanNode) -> str:
    """Return the fingerprint of these plans: 16 hexadecimal digits."""
    normaliser = _Normaliser()
    content = json.dumps([normaliser.normal(plan) for plan in plans], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class _Normaliser:
    """Numbers what it meets in the order of the plan."""

    def __init__(self) -> None:
        self._columns: dict[object, int] = {}
        self._tables: dict[object, int] = {}

    def normal(self, node: PlanNode) -> Any:
        if node.kind in _NAMES_ONLY:
            if node.kind == "SubqueryAlias" and node.fields["identifier"]["name"] == GIVEN:
                return "given"
            return self.normal(node.children[0])
        fields = {name: node.fields[name] for name in sorted(node.fields.keys() - _LEFT_OUT)}
        if node.kind == "CTERelationDef":
            fields["id"] = self._number(self._tables, fields["id"])
        if node.kind == "CTERelationRef":
            fields["cteId"] = self._number(self._tables, fields["cteId"])
        if node.kind == "NamedLambdaVariable":
            fields = {"exprId": fields["exprId"]}
        children = () if node.kind in _RANDOM else node.children
        # The children first: their columns are made before this operator uses them.
        below = [self.normal(child) for child in children]
        return [node.kind, below, {name: self._value(value) for name, value in fields.items()}]

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            if value and isinstance(value[0], dict) and "num-children" in value[0]:
                return self.normal(parse_plan(value))
            return [self._value(item) for item in value]
        if isinstance(value, dict):
            if "jvmId" in value:
                return self._number(self._columns, value["id"])
            return {name: self._value(value[name]) for name in sorted(value) if name not in _LEFT_OUT}
        return value

    @staticmethod
    def _number(numbers: dict[object, int], found: object) -> int:
        return numbers.setdefault(found, len(numbers))
