"""The rows that an operator of a plan gives, as far as periods are concerned: which of their columns hold the row's period.

A left join makes the columns of its right side *maybe* null; then they are the row's period or null. After a full outer join on
the period, both sides' columns are maybe null, but one of them is not: together they *cover* the row, and ``coalesce`` of a
cover is the period again. (Spark makes such a ``coalesce`` itself for ``join(…, ["period"], "outer")``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aiokcc.spark.analysed_plan import PlanNode, attribute_id

__all__ = ["MixesPeriods", "NotShownByPlan", "Rows", "unnamed"]


class MixesPeriods(Exception):  # noqa: N818 - a decision
    """An operator puts rows of several periods together. The text names it."""


class NotShownByPlan(Exception):  # noqa: N818 - a decision
    """The plan does not show whether periods are kept apart. The text says why."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The output of an operator whose rows are made from the frame's records, each row from records of one period."""

    output: tuple[int, ...] | None
    """The columns in order; None if they are not known."""
    covers: frozenset[frozenset[int]] = frozenset()
    """Sets of columns: in each row at least one column of a set is not null, and all that are not null are the row's period."""
    maybe: frozenset[int] = frozenset()
    """Columns that are the row's period or null."""
    has_records: bool = True
    """False if no row is made from the frame's records: a table that is the same for every period."""

    def is_period(self, expression: PlanNode) -> bool:
        """Return whether an expression is the row's period in every row."""
        if expression.kind == "Alias":
            return self.is_period(expression.children[0])
        if expression.kind == "AttributeReference":
            return frozenset([attribute_id(expression)]) in self.covers
        if expression.kind == "Coalesce":
            columns = {attribute_id(child) for child in expression.children}
            return columns <= self.maybe and any(cover <= columns for cover in self.covers)
        return False

    def is_maybe(self, expression: PlanNode) -> bool:
        """Return whether an expression is the row's period or null in every row."""
        if expression.kind in ("Alias", "Coalesce"):
            return all(map(self.is_maybe, expression.children))
        return expression.kind == "AttributeReference" and attribute_id(expression) in self.maybe

    def is_key(self, keys: Iterable[PlanNode]) -> bool:
        """Return whether rows with equal keys are of one period."""
        keys = list(keys)
        columns = {attribute_id(unnamed(key)) for key in keys}
        return any(map(self.is_period, keys)) or any(cover <= columns for cover in self.covers)

    def select(self, chosen: Sequence[PlanNode]) -> Rows:
        """Return the rows with these expressions as columns."""
        names: dict[int, int] = {}
        covers, maybe = set(), set()
        for expression in chosen:
            column = attribute_id(expression)
            assert column is not None
            if self.is_maybe(expression):
                maybe.add(column)
                names.setdefault(attribute_id(unnamed(expression)) or column, column)
            if self.is_period(expression):
                covers.add(frozenset([column]))
        covers |= {frozenset(names[c] for c in cover) for cover in self.covers if cover <= names.keys()}
        return replace(
            self, output=tuple(attribute_id(e) or 0 for e in chosen), covers=frozenset(covers), maybe=frozenset(maybe)
        )

    def renamed(self, output: Sequence[int]) -> Rows:
        """Return the rows with other numbers for the same columns, by position."""
        if self.output is None or len(self.output) != len(output):
            raise NotShownByPlan("a part of the plan is used twice, and its columns do not correspond")
        names = dict(zip(self.output, output, strict=True))
        return Rows(
            tuple(output),
            frozenset(frozenset(names[c] for c in cover) for cover in self.covers if cover <= names.keys()),
            frozenset(names[c] for c in self.maybe if c in names),
            self.has_records,
        )

    def with_columns(self, added: Sequence[PlanNode]) -> Rows:
        """Return the rows with further columns, which do not hold the period."""
        if self.output is None:
            return self
        return replace(self, output=(*self.output, *(attribute_id(e) or 0 for e in added)))


def unnamed(expression: PlanNode) -> PlanNode:
    """Return the expression without the names that it was given."""
    return unnamed(expression.children[0]) if expression.kind == "Alias" else expression
