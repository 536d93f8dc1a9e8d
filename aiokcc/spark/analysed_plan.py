"""Spark's analysed plan of a frame, as a tree in Python.

Spark writes a plan as JSON: a list of nodes in pre-order, each with its class, the number of its children and its fields. A
field that holds expressions has lists of the same form. One call brings the whole plan, where asking the Java objects node
by node would take hundreds. Fields that Spark cannot write, such as functions and RDDs, are null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlanNode", "analysed_plan", "attribute_id", "expressions", "parse_plan", "text_of"]

_FROM_PYTHON: Final = re.compile(
    r"[\s|()\d+-]*(MapPartitionsRDD|PythonRDD|ParallelCollectionRDD)\[\d+\] at "
    r"(applySchemaToPythonRDD|map|mapPartitions|RDD|readRDDFromFile|parallelize) .*"
)
"""A line in the history of an RDD that ``createDataFrame`` makes from a list. A frame's RDD has other lines."""
LINEAGE: Final = "aiokcc.lineage"
"""The field that is added to a leaf that is an RDD: True if the RDD may have been made from a frame."""
_PLANS: Final[WeakKeyDictionary[DataFrame, PlanNode]] = WeakKeyDictionary()
"""The plans of frames that are alive: a plan of a hundred periods takes 30 ms, and is needed for two decisions."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """An operator of a plan, or an expression."""

    kind: str
    """The name of its class, without the package."""
    fields: Mapping[str, Any]
    children: tuple[PlanNode, ...]

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and all below it, in pre-order. Plans inside expressions are not entered."""
        yield self
        for child in self.children:
            yield from child.walk()


def analysed_plan(frame: DataFrame) -> PlanNode:
    """Return the analysed plan of a frame of a classic session; no job runs. It is asked for once for each frame."""
    plan = _PLANS.get(frame)
    if plan is None:
        plan = _PLANS[frame] = _analysed_plan(frame)
    return plan


def _analysed_plan(frame: DataFrame) -> PlanNode:
    analysed = frame._jdf.queryExecution().analyzed()
    plan = parse_plan(json.loads(analysed.toJSON()))
    rdds = [node for node in plan.walk() if node.kind == "LogicalRDD"]
    if rdds:
        leaves = analysed.collectLeaves()
        found = [leaves.apply(n) for n in range(leaves.size())]
        lineages = [leaf.rdd().toDebugString() for leaf in found if leaf.getClass().getSimpleName() == "LogicalRDD"]
        for node, lineage in zip(rdds, lineages, strict=True):
            node.fields[LINEAGE] = not all(map(_FROM_PYTHON.fullmatch, lineage.splitlines()))  # type: ignore[index]
    return plan


def parse_plan(nodes: Sequence[Mapping[str, Any]]) -> PlanNode:
    """Return the tree of a list of nodes in pre-order."""
    rest = iter(nodes)

    def take() -> PlanNode:
        fields = dict(next(rest))
        kind = str(fields.pop("class")).rpartition(".")[2]
        return PlanNode(kind, fields, tuple(take() for _ in range(fields.pop("num-children"))))

    return take()


def expressions(value: object) -> list[PlanNode]:
    """Return the expressions that a field holds, in order, whether it holds one or a sequence, however nested."""
    if not isinstance(value, list) or not value:
        return []
    if isinstance(value[0], dict):
        return [parse_plan(value)] if "num-children" in value[0] else []
    return [expression for item in value for expression in expressions(item)]


def attribute_id(expression: PlanNode) -> int | None:
    """Return the number by which the plan identifies a column; None if the expression is no column and has no name."""
    found = expression.fields.get("exprId")
    return int(found["id"]) if isinstance(found, dict) and expression.kind in ("AttributeReference", "Alias") else None


def text_of(expression: PlanNode) -> str:
    """Return an expression as a person would write it, shortened."""
    if expression.kind in ("AttributeReference", "Alias", "OuterReference") and "name" in expression.fields:
        return str(expression.fields["name"])
    if expression.kind == "Literal":
        return str(expression.fields.get("value"))
    inner = ", ".join(map(text_of, expression.children))
    return f"{expression.kind.lower()}({inner if len(inner) <= 60 else inner[:60] + '…'})"
