"""Functions whose plans show that they keep periods apart, functions that mix periods, and functions whose plans do not tell.

What the plan is said to show is compared with the truth: each function is given all periods at once, and each period alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest

from aiokcc.spark.analysed_plan import analysed_plan
from aiokcc.spark.function_jobs import FunctionJobs
from aiokcc.spark.period_rows import MixesPeriods, NotShownByPlan
from aiokcc.spark.separation import RECORDS, check_separation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(180)

Function = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    """Return 24 records in three periods; identities, customers and countries repeat in all of them."""
    from pyspark.sql import functions as F  # noqa: N812

    n = F.col("n")
    frame = spark.range(24).withColumnRenamed("id", "n").coalesce(2)
    return frame.select(
        n.alias("offset"),
        (n % 5).alias("id"),
        (n % 4).alias("customer"),
        F.when(n % 3 == 0, "NL").otherwise("BE").alias("country"),
        F.concat(F.lit("v"), n % 5).alias("value"),
        F.timestamp_millis((n / 8).cast("long") * 3_600_000).alias("period"),
    )


def others(frame: DataFrame) -> DataFrame:
    """Return a table that is the same for every period, and has a row that matches nothing."""
    return frame.sparkSession.createDataFrame([("NL", 21), ("BE", 20), ("FR", 19)], "country string, vat int")


def F() -> Any:  # noqa: N802
    from pyspark.sql import functions

    return functions


def W() -> Any:  # noqa: N802
    from pyspark.sql import Window

    return Window


def sql(query: str) -> Function:
    return lambda frame: frame.sparkSession.sql(query, records=frame)


def double() -> Any:
    return F().udf(lambda n: n * 2, "long")


def mean() -> Any:
    """Return an aggregate in pandas."""
    import pandas as pd

    def compute(values: pd.Series) -> float:
        return float(values.mean())

    compute.__annotations__ = {"values": pd.Series, "return": float}
    return F().pandas_udf(compute, "double")


def centred(*, iterates: bool = False) -> Any:
    """Return a scalar UDF in pandas that gives each value's distance from the mean of the rows that it gets in one call."""
    from collections.abc import Iterator

    import pandas as pd

    def compute(values: pd.Series) -> pd.Series:
        return values - values.mean()

    def compute_each(values: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return map(compute, values)

    compute.__annotations__ = {"values": pd.Series, "return": pd.Series}
    compute_each.__annotations__ = {"values": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return F().pandas_udf(compute_each if iterates else compute, "double")


def viewed(frame: DataFrame, query: str) -> DataFrame:
    frame.createOrReplaceTempView("separation_records")
    return frame.sparkSession.sql(query)


def halves(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return frame.where("offset % 2 = 0"), frame.where("offset % 2 = 1")


def join(on: Any, how: str = "inner") -> Function:
    def joined(frame: DataFrame) -> DataFrame:
        left, right = halves(frame)
        return left.join(right.select("period", "id", F().col("offset").alias("other")), on, how)

    return joined


APART: dict[str, Function] = {
    "as it is": lambda f: f,
    "select and filter": lambda f: f.select("period", (F().col("id") + 1).alias("next")).where("next > 2"),
    "groupBy": lambda f: f.groupBy("period", "country").agg(F().count("*").alias("n")),
    "groupBy, the period renamed and renamed back": lambda f: (
        f.withColumnRenamed("period", "p").groupBy("p").count().withColumnRenamed("p", "period")
    ),
    "distinct": lambda f: f.select("period", "id").distinct(),
    "dropDuplicates": lambda f: f.dropDuplicates(["period", "id"]).select("period", "id"),
    "window": lambda f: f.withColumn(
        "rank", F().row_number().over(W().partitionBy("period", "country").orderBy("offset"))
    ),
    "two windows": lambda f: f.withColumn("a", F().sum("id").over(W().partitionBy("period"))).withColumn(
        "b", F().lag("id").over(W().partitionBy("country", "period").orderBy("offset"))
    ),
    "inner join": join(["period", "id"]),
    "left join": join(["period", "id"], "left"),
    "right join": join(["period", "id"], "right"),
    "full outer join": join(["period", "id"], "outer"),
    "semi join": join(["period", "id"], "semi"),
    "anti join": join(["period", "id"], "anti"),
    "join of a frame with itself": lambda f: f.join(f.groupBy("period").count(), "period"),
    "join with a condition": lambda f: (
        f.alias("a").join(f.alias("b"), (F().expr("a.period = b.period and a.id < b.id"))).select("a.period", "b.id")
    ),
    "join with a table": lambda f: f.join(others(f), "country"),
    "broadcast left join with a table": lambda f: f.join(F().broadcast(others(f)), "country", "left"),
    "join, then groupBy the joined period": lambda f: join(["period", "id"], "outer")(f).groupBy("period").count(),
    "union": lambda f: halves(f)[0].union(halves(f)[1]),
    "unionByName with a missing column": lambda f: halves(f)[0].unionByName(
        halves(f)[1].drop("value"), allowMissingColumns=True
    ),
    "intersect": lambda f: f.select("period", "id").intersect(halves(f)[0].select("period", "id")),
    "exceptAll": lambda f: f.select("period", "id").exceptAll(halves(f)[0].select("period", "id")),
    "explode": lambda f: f.withColumn("each", F().explode(F().sequence(F().lit(0), F().col("id")))),
    "scalar UDF": lambda f: f.withColumn("twice", double()("id")),
    "scalar UDF that gets its rows by Arrow": lambda f: f.withColumn(
        "twice", F().udf(lambda n: n * 2, "long", useArrow=True)("id")
    ),
    "pivot with values": lambda f: f.groupBy("period").pivot("country", ["NL", "BE"]).count(),
    "unpivot": lambda f: f.unpivot(["period"], ["id", "customer"], "what", "number"),
    "time windows inside the period": lambda f: f.groupBy("period", F().window("period", "2 hours", "1 hour")).count(),
    "grouping sets that all have the period": sql(
        "select period, country, count(*) n from {records} group by grouping sets ((period, country), (period))"
    ),
    "cached": lambda f: f.cache().groupBy("period").count(),
    "sorted and repartitioned": lambda f: f.orderBy("id").repartition(3, "country").groupBy("period").count(),
    "SQL": sql("select period, country, max(id) m from {records} group by period, country having count(*) > 1"),
    "SQL join in WHERE": sql(
        "select a.period, a.id, b.offset from {records} a, {records} b where a.period = b.period and a.id = b.id"
    ),
    "SQL WITH": sql(
        "with t as (select period, id, count(*) n from {records} group by period, id) "
        "select x.period, x.id, y.n from t x join t y on x.period = y.period and x.id = y.n"
    ),
    "SQL UNION": sql("select period, id from {records} union select period, customer from {records}"),
    "collect_list and first": lambda f: f.groupBy("period").agg(
        F().sort_array(F().collect_set("id")).alias("ids"), F().min("offset").alias("first")
    ),
    "rollup inside the period": sql(
        "select period, country, sum(n) n from (select period, country, id, count(*) n from {records} "
        "group by period, rollup(country, id)) group by period, rollup(country)"
    ),
    "dropDuplicates after union": lambda f: halves(f)[0].union(f).dropDuplicates(),
    "join on renamed periods": lambda f: (
        f.select(F().col("period").alias("p"), "id")
        .join(f.select(F().col("period").alias("q"), F().col("id").alias("other")), F().expr("p = q and id = other"))
        .select(F().col("q").alias("period"), "id")
    ),
    "natural join with a total of the period": sql(
        "select * from {records} natural join (select period, count(*) c from {records} group by period)"
    ),
    "three outer joins": lambda f: (
        f.select("period", "id")
        .join(f.where("id = 1").select("period", "customer"), ["period"], "outer")
        .join(f.where("id = 2").select("period", "offset"), ["period"], "outer")
    ),
    "the period of either side of a left join": lambda f: (
        halves(f)[0]
        .alias("a")
        .join(f.where("id = 1").alias("b"), F().expr("a.period = b.period"), "left")
        .select(F().coalesce("b.period", "a.period").alias("period"), "a.id")
    ),
    "count distinct": lambda f: f.groupBy("period").agg(F().countDistinct("id").alias("n")),
    "collect_list, exploded again": lambda f: (
        f.groupBy("period").agg(F().collect_list("id").alias("l")).select("period", F().explode("l"))
    ),
    "aggregates in Python, grouped and over a window": lambda f: f.withColumn(
        "mean", mean()("offset").over(W().partitionBy("period"))
    ),
    "generators": sql(
        "select period, e, k, v from {records} lateral view explode(array(id, customer)) t as e "
        "lateral view stack(2, 'a', id, 'b', customer) u as k, v"
    ),
    "cached and used twice": lambda f: (
        f.select("period", "id").cache().groupBy("period").count().union(f.cache().groupBy("period").count())
    ),
    "intersectAll": lambda f: f.select("period", "id").intersectAll(f.select("period", "customer")),
    "temporary view": lambda f: viewed(f, "select period, count(*) n from separation_records group by period"),
    "join on the period under another name": lambda f: f.join(
        f.groupBy(F().col("period").alias("q")).agg(F().max("id").alias("m")), F().expr("period = q")
    ).drop("q"),
    "join with a table of periods": sql(
        "select r.* from {records} r join (values (timestamp_millis(0))) t(p) on r.period = t.p"
    ),
    "session windows inside the period": lambda f: f.groupBy("period", F().session_window("period", "2 hours")).count(),
    "WITH inside WITH": sql(
        "with a as (with b as (select period, id, count(*) c from {records} group by period, id) "
        "select period, max(c) m from b group by period) select r.*, a.m from {records} r join a using (period)"
    ),
    "window over a range of values": lambda f: f.withColumn(
        "near", F().count("*").over(W().partitionBy("period").orderBy("offset").rangeBetween(-2, 0))
    ),
    "correlated subquery over a table": lambda f: f.sparkSession.sql(
        "select *, (select max(vat) from {rates} r where r.country = f.country) vat from {records} f",
        records=f,
        rates=others(f),
    ),
    "the null side of a left join, joined again": lambda f: (
        f.alias("a")
        .join(f.where("id = 1").alias("b"), F().expr("a.period = b.period and a.offset = b.offset"), "left")
        .select(F().col("b.period").alias("found"), "a.period", "a.id")
        .alias("x")
        .join(f.alias("c"), F().expr("x.found <=> c.period"))
        .select("x.period", "x.id", "c.offset")
    ),
    "groupBy of groupBy": lambda f: (
        f.groupBy("period", "country").count().groupBy("period").agg(F().max("count").alias("m"))
    ),
}

MIXES: dict[str, tuple[Function, str]] = {
    "groupBy": (
        lambda f: f.groupBy("country").agg(F().count("*").alias("n"), F().min("period").alias("period")),
        r"groupBy\(country\) does not have 'period'",
    ),
    "aggregate over all": (
        lambda f: f.agg(F().min("period").alias("period"), F().count("*")),
        "aggregate over all rows",
    ),
    "dropDuplicates": (lambda f: f.dropDuplicates(["id"]), r"dropDuplicates\(id\) does not have 'period'"),
    "distinct, then the period from a join": (
        lambda f: f.where("offset > 20").select("id").distinct().join(f.select("period", "id"), "id"),
        r"dropDuplicates\(id\)",
    ),
    "window": (
        lambda f: f.withColumn("rank", F().row_number().over(W().partitionBy("country").orderBy("offset"))),
        r"the window of .*partitionBy\(country\), does not have 'period'",
    ),
    "window over all": (
        lambda f: f.withColumn("rank", F().row_number().over(W().orderBy("offset"))),
        r"partitionBy\(\), does not have",
    ),
    "join": (
        lambda f: f.join(halves(f)[0].select("id", "value"), "id"),
        r"a join on \(id = id\) does not have 'period' of both sides",
    ),
    "left join": (lambda f: f.join(halves(f)[0].select("id", "value"), "id", "left"), "a join on"),
    "semi join": (lambda f: f.join(halves(f)[0], "id", "semi"), "a join on"),
    "anti join": (lambda f: f.join(f.where("offset < 3"), "id", "anti"), "a join on"),
    "cross join": (
        lambda f: f.crossJoin(f.select(F().col("offset").alias("other"))),
        r"a join on \(\) does not have",
    ),
    "join of a total": (lambda f: f.crossJoin(f.agg(F().count("*").alias("all"))), "aggregate over all rows"),
    "right join with a table": (
        lambda f: f.join(others(f), "country", "right"),
        "rows of a table that belong to no period",
    ),
    "full outer join with a table": (
        lambda f: f.join(others(f), "country", "outer"),
        "outer join keeps rows of a table",
    ),
    "the period of the right side of a left join": (
        lambda f: (
            halves(f)[0]
            .alias("a")
            .join(f.where("id = 1").alias("b"), F().expr("a.period = b.period"), "left")
            .select("b.period", "a.id")
        ),
        "null for rows without a match",
    ),
    "rollup": (lambda f: f.rollup("period", "country").count(), "rollup, cube or grouping sets"),
    "cube": (lambda f: f.cube("period", "country").count(), "totals over all periods"),
    "limit": (lambda f: f.orderBy("offset").limit(5), "limit"),
    "a coarser period": (
        lambda f: f.withColumn("period", F().date_trunc("day", "period")).groupBy("period").count(),
        r"groupBy\(period\).*not the frame's",
    ),
    "a computed period": (
        lambda f: f.withColumn("period", F().date_trunc("day", "period")),
        "not the one of the frame",
    ),
    "union with a table": (
        lambda f: f.select("period", "id").union(f.sparkSession.sql("select timestamp_millis(0), 9L")),
        "a union adds rows of a table",
    ),
    "scalar subquery": (
        sql("select * from {records} where offset = (select max(offset) from {records})"),
        "a subquery over the frame",
    ),
    "IN subquery": (
        sql("select * from {records} where id in (select customer from {records} where offset > 20)"),
        "a subquery over the frame",
    ),
    "SQL DISTINCT": (
        sql(
            "select a.period, b.n from {records} a, (select distinct id n from {records} where offset > 20) b where a.id = b.n"
        ),
        r"distinct\(\) on rows without 'period'",
    ),
    "intersect": (
        lambda f: f.select("id").intersect(f.where("offset > 20").select("id")).join(f, "id"),
        "intersect of rows without 'period'",
    ),
    "dropDuplicates after union": (
        lambda f: halves(f)[0].union(halves(f)[1]).dropDuplicates(["id"]),
        r"dropDuplicates\(id\)",
    ),
    "running total over periods": (
        lambda f: f.groupBy("period").count().withColumn("all", F().sum("count").over(W().orderBy("period"))),
        "the window of all",
    ),
    "join with the period before": (
        lambda f: f.join(f.selectExpr("period + interval 1 hour as period", "id as before"), "period"),
        "a join on",
    ),
    "join on the period or something else": (
        lambda f: f.alias("a").join(f.alias("b"), F().expr("a.period = b.period or a.id = b.id")).select("a.period"),
        r"a join on \(\)",
    ),
    "lateral join": (
        sql("select a.period, b.m from {records} a, lateral (select max(offset) m from {records} c) b"),
        "a subquery over the frame, in lateraljoin",
    ),
    "grouping sets, one without the period": (
        sql("select period, country, count(*) n from {records} group by grouping sets ((period, country), (country))"),
        "rollup, cube or grouping sets",
    ),
    "session windows over periods": (
        lambda f: (
            f.groupBy(F().session_window("period", "2 hours"))
            .count()
            .select(F().col("session_window.start").alias("period"), "count")
        ),
        r"groupBy\(session_window\)",
    ),
    "window in Python": (
        lambda f: f.withColumn("mean", mean()("offset").over(W().partitionBy("id"))),
        "the window of mean",
    ),
    "temporary view": (
        lambda f: viewed(f, "select id, min(period) period from separation_records group by id"),
        r"groupBy\(id\)",
    ),
    "a frame without periods in a union": (
        lambda f: f.select("period", "id").unionByName(f.select("id"), allowMissingColumns=True),
        "is not the one of the frame, but computed",
    ),
    "a window in the order of periods": (
        lambda f: f.withColumn("total", F().sum("id").over(W().partitionBy("id").orderBy("period"))),
        r"partitionBy\(id\), does not have 'period'",
    ),
    "aggregate, the period dropped": (
        lambda f: f.groupBy("period", "id").count().drop("period").distinct().join(f.select("period", "id"), "id"),
        r"distinct|dropDuplicates\(id, count\)",
    ),
    "a cached table made of the frame": (
        lambda f: f.join(f.groupBy("id").count().cache(), "id"),
        r"groupBy\(id\)",
    ),
    "a period that is null for some rows": (
        lambda f: f.withColumn("period", F().when(F().col("id") > 2, F().col("period"))).groupBy("period").count(),
        "not the frame's 'period' any more",
    ),
    "WITH inside WITH": (
        sql(
            "with a as (with b as (select id, count(*) c from {records} group by id) select id, max(c) m from b group by id) "
            "select r.*, a.m from {records} r join a using (id)"
        ),
        r"groupBy\(id\)",
    ),
    "each row in two periods": (
        lambda f: f.withColumn("period", F().explode(F().expr("array(period, period + interval 1 hour)"))),
        "not the one of the frame",
    ),
    "groupBy on the null side of a left join": (
        lambda f: (
            f.alias("a")
            .join(f.where("id = 1").alias("b"), F().expr("a.period = b.period and a.offset = b.offset"), "left")
            .groupBy(F().col("b.period").alias("found"))
            .agg(F().min("a.period").alias("period"), F().count("*").alias("n"))
        ),
        r"groupBy\(.*\) does not have 'period'",
    ),
    "groups in Python": (
        lambda f: f.groupBy("country").applyInPandas(lambda rows: rows.head(1), f.schema),
        r"groupBy\(country\).applyInPandas does not have 'period'",
    ),
}

LABELLED_WRONG = {
    "each row in two periods",
    "a computed period",
    "a frame without periods in a union",
    "the period of the right side of a left join",
}
"""These give the same rows, but do not say of which period they are."""

UNKNOWN: dict[str, tuple[Function, str]] = {
    "mapInPandas": (lambda f: f.mapInPandas(lambda rows: rows, f.schema), "mapInPandas runs Python"),
    "mapInArrow": (lambda f: f.mapInArrow(lambda rows: rows, f.schema), "mapInArrow runs Python"),
    "groups in Python": (
        lambda f: f.groupBy("period").applyInPandas(lambda rows: rows, f.schema),
        "applyInPandas runs Python on groups",
    ),
    "cogroup": (
        lambda f: f.groupBy("period").cogroup(f.groupBy("period")).applyInPandas(lambda a, b: a, f.schema),
        "cogroup",
    ),
    "RDD": (lambda f: f.rdd.map(lambda row: row).toDF(f.schema), "an RDD"),
    "checkpoint": (lambda f: f.localCheckpoint(eager=False), "an RDD"),
    "correlated subquery": (
        sql(
            "select * from {records} a where exists (select 1 from {records} b where a.period = b.period and a.id < b.id)"
        ),
        "correlated subquery",
    ),
    "sample": (lambda f: f.sample(0.5, seed=3), r"sample\(\) depends on the position of rows"),
    "randomSplit": (lambda f: f.randomSplit([0.5, 0.5], 3)[0], r"sample\(\)"),
    "rand": (lambda f: f.where(F().rand(3) > 0.5), r"rand\(\)"),
    "monotonically_increasing_id": (
        lambda f: f.withColumn("n", F().monotonically_increasing_id()),
        r"monotonically_increasing_id\(\)",
    ),
    "spark_partition_id": (lambda f: f.repartition(3).withColumn("n", F().spark_partition_id()), "spark_partition_id"),
    "index of an RDD": (
        lambda f: f.rdd.zipWithIndex().map(lambda row: (row[0].period, row[1])).toDF(["period", "n"]),
        "an RDD",
    ),
    "lateral join inside the period": (
        sql(
            "select a.period, b.m from {records} a, lateral (select max(offset) m from {records} c where c.period = a.period) b"
        ),
        "correlated subquery",
    ),
    "uniform with a seed": (sql("select *, uniform(0, 100, 7) u from {records}"), r"uniform\(\)"),
    "randstr with a seed": (sql("select *, randstr(5, 7) u from {records}"), r"randstr\(\)"),
    "shuffle": (lambda f: f.withColumn("s", F().shuffle(F().array("id", "customer"))), r"shuffle\(\)"),
    "UDF that is not deterministic": (
        lambda f: f.withColumn("n", F().udf(lambda n: n, "long").asNondeterministic()("id")),
        r"<lambda>\(\) is declared as not deterministic",
    ),
    "aggregate in Python that is not deterministic": (
        lambda f: f.groupBy("period").agg(mean().asNondeterministic()("offset").alias("m")),
        r"compute\(\) is declared as not deterministic",
    ),
    "uuid with a seed": (lambda f: f.withColumn("u", F().expr("uuid(7)")), r"uuid\(\)"),
    "not made from the frame": (
        lambda f: f.sparkSession.sql("select timestamp_millis(0) as period, 1 as n"),
        "not made from the frame",
    ),
}


def check(function: Function, records: DataFrame) -> None:
    check_separation(analysed_plan(function(records.alias(RECORDS))))


def results(function: Function, records: DataFrame) -> tuple[Counter[str], Counter[str]]:
    """Return the rows that the function gives for all periods at once, and for each period alone; in one job."""
    from pyspark.sql import functions as F  # noqa: N812

    periods = [F.timestamp_millis(F.lit(n * 3_600_000)) for n in range(3)]
    frames = [function(records), *(function(records.where(records["period"] == period)) for period in periods)]
    numbered = [
        frame.select(F.lit(n > 0).alias("is_alone"), F.to_json(F.struct("*"))) for n, frame in enumerate(frames)
    ]
    rows = reduce(lambda a, b: a.union(b), numbered).collect()
    return Counter(row[1] for row in rows if not row[0]), Counter(row[1] for row in rows if row[0])


@pytest.mark.parametrize("name", APART)
def test_plan_shows_that_periods_are_kept_apart(records: DataFrame, name: str) -> None:
    check(APART[name], records)
    together, alone = results(APART[name], records)
    assert together == alone
    assert together


@pytest.mark.parametrize("name", MIXES)
def test_function_that_mixes_periods_is_refused_and_the_operator_named(records: DataFrame, name: str) -> None:
    function, reason = MIXES[name]
    with pytest.raises(MixesPeriods, match=reason):
        check(function, records)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MIXES.keys() - LABELLED_WRONG))
def test_function_that_is_refused_gives_other_rows_for_several_periods(records: DataFrame, name: str) -> None:
    together, alone = results(MIXES[name][0], records)
    assert together != alone


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_plan_does_not_show_is_neither_refused_nor_accepted(records: DataFrame, name: str) -> None:
    function, reason = UNKNOWN[name]
    with pytest.raises(NotShownByPlan, match=reason):
        check(function, records)


@pytest.mark.parametrize(
    ("group", "counts"),
    [(None, True), ("of-the-function", True), ("aiokcc-1-1", True), ("aiokcc-1-2", False)],
    ids=["of a thread", "of the function", "ours", "of another pipeline"],
)
def test_a_job_that_begins_meanwhile_counts_unless_it_is_of_another_pipeline(
    spark: SparkSession, group: str | None, counts: bool
) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "aiokcc-1-1")
    try:
        jobs = FunctionJobs(spark)
        assert not jobs.were_run()
        context.setLocalProperty("spark.jobGroup.id", group)  # type: ignore[arg-type]
        assert spark.range(3).count() == 3
        assert jobs.were_run() == counts
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
