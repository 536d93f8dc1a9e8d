"""A pipeline with state for tests: the balance of each customer after each period, on Spark and in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aiokcc.spark import Periods
from tests.pipelines import Log, decoded, millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "customer int, total bigint, orders bigint, seen timestamp"


def balances(frame: DataFrame, periods: Periods, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the balance of each customer with orders after each period, and the balances of all customers after the last.

    It takes any number of periods in one frame.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    now = decoded(frame).groupBy("period", "customer").agg(F.sum("amount").alias("total"), F.count("*").alias("orders"))
    so_far = Window.partitionBy("customer").orderBy("period")
    old = state.select("customer", F.col("total").alias("before"), F.col("orders").alias("orders_before"))
    result = now.join(old, "customer", "left").select(
        "period",
        "customer",
        (F.sum("total").over(so_far) + F.coalesce("before", F.lit(0))).alias("total"),
        (F.sum("orders").over(so_far) + F.coalesce("orders_before", F.lit(0))).alias("orders"),
    )
    new = now.select("customer", "total", "orders", F.col("period").alias("seen"))
    after = state.unionByName(new).groupBy("customer")
    return result, after.agg(
        F.sum("total").alias("total"), F.sum("orders").alias("orders"), F.max("seen").alias("seen")
    )


def balances_in_python(
    log: Log, before: Mapping[int, tuple[int, int]] | None = None
) -> list[tuple[int, int, int, int]]:
    """Return period, customer, total and number of orders, as the result has them."""
    held = {customer: list(found) for customer, found in (before or {}).items()}
    rows: dict[tuple[int, int], tuple[int, int]] = {}
    for start, value in sorted(log.labelled(), key=lambda item: item[0]):
        mine = held.setdefault(value["customer"], [0, 0])
        mine[0] += value["amount"]
        mine[1] += 1
        rows[start, value["customer"]] = (mine[0], mine[1])
    return sorted((start, customer, *found) for (start, customer), found in rows.items())


def balances_at(
    log: Log, time: int = 2**60, before: Mapping[int, tuple[int, int]] | None = None
) -> list[tuple[int, int, int, int | None]]:
    """Return customer, total, number of orders and the last period with one, of all periods that start before a time."""
    held: dict[int, tuple[int, int, int | None]] = {c: (*found, None) for c, found in (before or {}).items()}
    for start, customer, total, orders in balances_in_python(log, before):
        if start < time:
            held[customer] = (total, orders, start)
    return sorted((customer, *found) for customer, found in held.items())


def rows_of(rows: Iterable[Any]) -> list[tuple[int, int, int, int]]:
    return sorted((millis(row["period"]), row["customer"], row["total"], row["orders"]) for row in rows)


def state_of(rows: Iterable[Any]) -> list[tuple[int, int, int, int | None]]:
    return sorted(
        (row["customer"], row["total"], row["orders"], None if row["seen"] is None else millis(row["seen"]))
        for row in rows
    )
