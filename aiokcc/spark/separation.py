"""Decides from the analysed plan whether a function keeps periods apart.

It keeps them apart if the rows of each period are the same as if the function were given that period alone. The plan shows
that if every operator that looks at several rows has the period among its keys: groupings, distinct, windows, joins and set
operations.

For each operator, from the leaves up, :mod:`aiokcc.spark.period_rows` holds which of its columns hold the row's period.

The decision is one of three. The function keeps periods apart; or an operator mixes them, and is named; or the plan does
not show it, such as for ``mapInPandas``, where Python does something with many rows. An operator that is not known here is
of the last kind, and so is what depends on the position of rows in the frame, such as ``sample`` and ``rand``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from aiokcc.spark.analysed_plan import LINEAGE, PlanNode, attribute_id, expressions, parse_plan, text_of
from aiokcc.spark.period_column import PERIOD
from aiokcc.spark.period_rows import MixesPeriods, NotShownByPlan, Rows

__all__ = ["RECORDS", "check_separation"]

RECORDS: Final = "aiokcc_records"
"""The name under which the frame that the function is given stands in the plan."""

_ROW_BY_ROW: Final = frozenset(
    [
        "SubqueryAlias",
        "View",
        "Sort",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
        "CollectMetrics",
        "EventTimeWatermark",
    ]
)
_ROW_BY_ROW_UDFS: Final = (100, 101)
"""The kinds of scalar Python UDFs that are called for each row. Others, such as those in pandas, get many rows in one call."""
_LIMITS: Final = frozenset(["GlobalLimit", "LocalLimit", "Offset", "Tail", "LimitAll"])
_PYTHON: Final = {
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
    "PythonMapInArrow": "mapInArrow",
    "FlatMapCoGroupsInPandas": "cogroup().applyInPandas",
    "FlatMapCoGroupsInArrow": "cogroup().applyInArrow",
}
_GROUPS_IN_PYTHON: Final = {"FlatMapGroupsInPandas": "applyInPandas", "FlatMapGroupsInArrow": "applyInArrow"}
_BY_POSITION: Final = {
    "Sample": "sample",
    "Rand": "rand",
    "Randn": "randn",
    "Uniform": "uniform",
    "RandStr": "randstr",
    "Shuffle": "shuffle",
    "Uuid": "uuid",
    "MonotonicallyIncreasingID": "monotonically_increasing_id",
    "SparkPartitionID": "spark_partition_id",
}
"""Their values depend on where a row stands in its task, and so on the other rows of the frame, also with a fixed seed."""
_GENERATORS: Final = frozenset(
    [
        "Explode",
        "PosExplode",
        "Inline",
        "Stack",
        "JsonTuple",
        "ReplicateRows",
        "SQLKeywords",
        "VariantExplode",
        "GeneratorOuter",
    ]
)


_SOME: Final = Rows(None)


def check_separation(plan: PlanNode) -> None:
    """Return if the plan keeps periods apart and its column ``period`` is the row's period.

    Raise MixesPeriods or NotShownByPlan otherwise.
    """
    rows = _Judge().judge(plan)
    if not rows.has_records:
        raise NotShownByPlan("the result is not made from the frame that the function is given")
    if rows.output is None:
        raise NotShownByPlan("the result's columns are not known")
    # Which column is called `period` is known from the names in the topmost operators that name columns.
    named = {attribute_id(e): str(e.fields.get("name")) for e in _naming(plan)}
    mine = [column for column in rows.output if named.get(column) == PERIOD]
    if len(mine) != 1 or frozenset(mine) not in rows.covers:
        null = len(mine) == 1 and mine[0] in rows.maybe
        raise MixesPeriods(
            f"the result's column {PERIOD!r} is "
            + ("null for rows without a match in an outer join" if null else "not the one of the frame, but computed")
        )


def _naming(plan: PlanNode) -> Iterable[PlanNode]:
    """Yield the named expressions of all operators: each column's name stands beside its number wherever it is used."""
    for node in plan.walk():
        for value in node.fields.values():
            for expression in expressions(value):
                yield from (e for e in expression.walk() if attribute_id(e) is not None)


class _Judge:
    """Walks a plan from the leaves up."""

    def __init__(self) -> None:
        self._common: dict[int, Rows] = {}
        """The common table expressions of a ``WITH``, by number."""
        self._rules: dict[str, Callable[[PlanNode], Rows]] = {
            "Project": self._project,
            "Filter": self._filter,
            "Join": self._join,
            "Aggregate": self._aggregate,
            "Window": self._window,
            "Deduplicate": self._deduplicate,
            "Distinct": self._distinct,
            "Union": self._union,
            "Intersect": self._set_operation,
            "Except": self._set_operation,
            "Expand": self._expand,
            "Generate": self._generate,
            "WithCTE": self._with,
            "CTERelationRef": self._common_table,
        }

    def judge(self, node: PlanNode) -> Rows:
        if node.kind == "SubqueryAlias" and node.fields["identifier"]["name"] == RECORDS:
            return _records(node)
        self._check_expressions(node)
        if node.kind in self._rules:
            return self._rules[node.kind](node)
        if not node.children:
            return self._leaf(node)
        children = [self.judge(child) for child in node.children]
        if not any(child.has_records for child in children):
            return Rows(None, has_records=False)
        if node.kind in _ROW_BY_ROW:
            return children[0]
        if node.kind in _LIMITS:
            raise MixesPeriods("limit, offset or tail takes rows of all periods together")
        if node.kind in _GROUPS_IN_PYTHON:
            name = _GROUPS_IN_PYTHON[node.kind]
            keys = expressions(node.fields.get("groupingAttributes"))
            if not children[0].is_key(keys):
                raise MixesPeriods(f"groupBy({_list(keys)}).{name} does not have {PERIOD!r} among its keys")
            raise NotShownByPlan(f"{name} runs Python on groups of rows, and its result may hold anything")
        if node.kind in _PYTHON:
            raise NotShownByPlan(f"{_PYTHON[node.kind]} runs Python on many rows at once")
        raise NotShownByPlan(f"the operator {node.kind} is not known to keep periods apart")

    def _leaf(self, node: PlanNode) -> Rows:
        if node.fields.get(LINEAGE):
            raise NotShownByPlan("an RDD that is made from a frame is part of the plan")
        columns = [attribute_id(e) for e in expressions(node.fields.get("output"))]
        return Rows(tuple(c for c in columns if c is not None), has_records=False)

    def _check_expressions(self, node: PlanNode) -> None:
        """Raise an error for subqueries over the frame, and for values that depend on the position of a row."""
        _refuse_by_position(node.kind)
        for value in node.fields.values():
            for part in (e for expression in expressions(value) for e in expression.walk()):
                _refuse_by_position(part.kind)
                if part.fields.get("udfDeterministic") is False:
                    raise NotShownByPlan(
                        f"{part.fields.get('name') or 'a UDF'}() is declared as not deterministic: its values may depend on "
                        f"other rows"
                    )
                is_scalar = part.kind == "PythonUDF" and node.kind not in _PYTHON and node.kind not in _GROUPS_IN_PYTHON
                if is_scalar and part.fields.get("evalType") not in _ROW_BY_ROW_UDFS:
                    raise NotShownByPlan(f"{part.fields.get('name') or 'a UDF'}() gets many rows in one call")
                inner = part.fields.get("plan")
                if not isinstance(inner, list) or not _reads_records(inner):
                    continue
                if part.fields.get("outerAttrs"):
                    raise NotShownByPlan("a correlated subquery reads the frame")
                raise MixesPeriods(f"a subquery over the frame, in {node.kind.lower()}, sees all periods")

    # -- operators with one child ---------------------------------------------------------------------------------------

    def _project(self, node: PlanNode) -> Rows:
        return self.judge(node.children[0]).select(expressions(node.fields["projectList"]))

    def _filter(self, node: PlanNode) -> Rows:
        conditions = expressions(node.fields["condition"])
        below = node.children[0]
        while below.kind == "Filter":
            self._check_expressions(below)
            conditions += expressions(below.fields["condition"])
            below = below.children[0]
        if below.kind == "Join":  # FROM a, b WHERE a.period = b.period
            self._check_expressions(below)
            return self._join(below, conditions)
        return self.judge(below)

    def _aggregate(self, node: PlanNode) -> Rows:
        rows = self.judge(node.children[0])
        keys = expressions(node.fields["groupingExpressions"])
        if rows.has_records and not rows.is_key(keys):
            if not keys:
                raise MixesPeriods("an aggregate over all rows has no key")
            if any(text_of(key) == "spark_grouping_id" for key in keys):
                raise MixesPeriods(f"rollup, cube or grouping sets ({_list(keys[:-1])}) has totals over all periods")
            raise MixesPeriods(f"groupBy({_list(keys)}) does not have {PERIOD!r} among its keys{_renamed(keys)}")
        return rows.select(expressions(node.fields["aggregateExpressions"]))

    def _window(self, node: PlanNode) -> Rows:
        rows = self.judge(node.children[0])
        keys = expressions(node.fields["partitionSpec"])
        added = expressions(node.fields["windowExpressions"])
        if rows.has_records and not rows.is_key(keys):
            names = ", ".join(map(text_of, added))
            raise MixesPeriods(
                f"the window of {names}, partitionBy({_list(keys)}), does not have {PERIOD!r} among its keys"
            )
        return rows.with_columns(added)

    def _deduplicate(self, node: PlanNode) -> Rows:
        rows = self.judge(node.children[0])
        keys = expressions(node.fields["keys"])
        if rows.has_records and not rows.is_key(keys):
            raise MixesPeriods(f"dropDuplicates({_list(keys)}) does not have {PERIOD!r} among its columns")
        return rows

    def _distinct(self, node: PlanNode) -> Rows:
        rows = self.judge(node.children[0])
        if rows.has_records and not any(cover <= frozenset(rows.output or ()) for cover in rows.covers):
            raise MixesPeriods(f"distinct() on rows without {PERIOD!r}")
        return rows

    def _expand(self, node: PlanNode) -> Rows:
        """Take an operator that makes several rows of each. Columns of its child keep their numbers; others may be null."""
        rows = self.judge(node.children[0])
        output = [attribute_id(e) or 0 for e in expressions(node.fields["output"])]
        kept = frozenset(output)
        made = expressions(node.fields.get("projections"))
        always = [
            frozenset([column])
            for n, column in enumerate(output)
            if made and len(made) % len(output) == 0 and all(map(rows.is_period, made[n :: len(output)]))
        ]
        return Rows(
            tuple(output),
            frozenset(c for c in rows.covers if c <= kept).union(always),
            (rows.maybe & kept).union(*always),
            rows.has_records,
        )

    def _generate(self, node: PlanNode) -> Rows:
        rows = self.judge(node.children[0])
        generator = expressions(node.fields["generator"])[0].kind
        if rows.has_records and generator not in _GENERATORS:
            raise NotShownByPlan(f"the table function {generator} is not known to work row by row")
        return rows.with_columns(expressions(node.fields["generatorOutput"]))

    # -- operators with several children --------------------------------------------------------------------------------

    def _join(self, node: PlanNode, where: Sequence[PlanNode] = ()) -> Rows:
        left, right = map(self.judge, node.children)
        kind = _join_type(node.fields["joinType"])
        output = None if left.output is None or right.output is None else left.output + right.output
        if not (left.has_records or right.has_records):
            return Rows(output, has_records=False)
        conditions = expressions(node.fields.get("condition"))
        if kind in ("Inner", "Cross"):
            conditions += where  # a condition above an outer join filters its result, and decides no matches
        parts = list(itertools.chain.from_iterable(map(_conjuncts, conditions)))
        if left.has_records and right.has_records:
            if not any(_joins_periods(part, left, right) for part in parts):
                keys = [part for part in parts if part.kind in ("EqualTo", "EqualNullSafe")]
                raise MixesPeriods(
                    f"a join on ({', '.join(' = '.join(map(text_of, key.children)) for key in keys)}) does not have "
                    f"{PERIOD!r} of both sides among its keys"
                )
        elif kind == "FullOuter" or not {"LeftOuter": left, "RightOuter": right}.get(kind, _SOME).has_records:
            raise MixesPeriods("an outer join keeps rows of a table that belong to no period")
        elif kind not in ("Inner", "Cross", "LeftOuter", "RightOuter") and not left.has_records:
            raise MixesPeriods("a semi or anti join selects rows of a table, which belong to no period")
        if kind in ("LeftSemi", "LeftAnti"):
            return left
        both = left.maybe | right.maybe
        if kind in ("Inner", "Cross"):
            return Rows(output, left.covers | right.covers, both)
        if kind == "LeftOuter":
            return Rows(output, left.covers, both)
        if kind == "RightOuter":
            return Rows(output, right.covers, both)
        if kind == "FullOuter":
            return Rows(output, frozenset(a | b for a in left.covers for b in right.covers), both)
        raise NotShownByPlan(f"the join type {kind} is not known to keep periods apart")

    def _union(self, node: PlanNode) -> Rows:
        children = [self.judge(child) for child in node.children]
        if not any(child.has_records for child in children):
            return children[0]
        if not all(child.has_records for child in children):
            raise MixesPeriods("a union adds rows of a table that belong to no period")
        if children[0].output is None:
            raise NotShownByPlan("a union of frames whose columns are not known")
        same = [child.renamed(children[0].output) for child in children]
        return Rows(
            children[0].output,
            frozenset.intersection(*(child.covers for child in same)),
            frozenset.intersection(*(child.maybe for child in same)),
        )

    def _set_operation(self, node: PlanNode) -> Rows:
        left, right = map(self.judge, node.children)
        if left.has_records and right.has_records:
            if left.output is None or not left.covers & right.renamed(left.output).covers:
                raise MixesPeriods(f"{node.kind.lower()} of rows without {PERIOD!r}")
        elif right.has_records:
            raise MixesPeriods(f"{node.kind.lower()} takes rows of a table, which belong to no period")
        elif left.has_records and not node.fields.get("isAll") and not left.covers:
            raise MixesPeriods(f"{node.kind.lower()} of rows without {PERIOD!r}")
        elif left.has_records and node.fields.get("isAll"):
            raise MixesPeriods(f"{node.kind.lower()}All with a table, whose rows count once for all periods")
        return left

    def _with(self, node: PlanNode) -> Rows:
        *definitions, plan = node.children
        for definition in definitions:
            self._common[int(definition.fields["id"])] = self.judge(definition.children[0])
        return self.judge(plan)

    def _common_table(self, node: PlanNode) -> Rows:
        rows = self._common.get(int(node.fields["cteId"]))
        if rows is None or node.fields.get("recursive"):
            raise NotShownByPlan("a recursive common table expression")
        return rows.renamed([attribute_id(e) or 0 for e in expressions(node.fields["output"])])


def _records(node: PlanNode) -> Rows:
    columns = expressions(node.children[0].fields["projectList"])
    period = frozenset(c for e in columns if (c := attribute_id(e)) is not None and text_of(e) == PERIOD)
    return Rows(tuple(attribute_id(e) or 0 for e in columns), frozenset([period]), period)


def _refuse_by_position(kind: str) -> None:
    if kind in _BY_POSITION:
        raise NotShownByPlan(f"{_BY_POSITION[kind]}() depends on the position of rows in the frame")


def _conjuncts(condition: PlanNode) -> list[PlanNode]:
    if condition.kind == "And":
        return [part for child in condition.children for part in _conjuncts(child)]
    return [condition]


def _joins_periods(part: PlanNode, left: Rows, right: Rows) -> bool:
    """Return whether a condition is true only for rows of one period."""
    if part.kind not in ("EqualTo", "EqualNullSafe"):
        return False
    for one, other in (part.children, part.children[::-1]):
        if part.kind == "EqualTo" and left.is_maybe(one) and right.is_maybe(other):
            return True
        if (left.is_period(one) and right.is_maybe(other)) or (left.is_maybe(one) and right.is_period(other)):
            return True
    return False


def _join_type(value: object) -> str:
    if isinstance(value, Mapping):
        name = str(value.get("object") or value.get("product-class") or "")
        return name.rpartition(".")[2].rstrip("$")
    return str(value)


def _reads_records(plan: list[dict[str, object]]) -> bool:
    text = json.dumps(plan)
    return RECORDS in text or "CTERelationRef" in text or any(n.fields.get(LINEAGE) for n in parse_plan(plan).walk())


def _list(expressions_: Sequence[PlanNode]) -> str:
    return ", ".join(map(text_of, expressions_))


def _renamed(keys: Sequence[PlanNode]) -> str:
    return (
        f" (it has a column of that name, which is not the frame's {PERIOD!r} any more)"
        if any(text_of(key) == PERIOD for key in keys)
        else ""
    )
