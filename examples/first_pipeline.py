# %% [markdown]
# # A first pipeline
#
# Records of Kafka topics, period by period, as Spark DataFrames; each period exactly once, in order, and resumable.
#
# This is a notebook in the form of a script: Jupyter, VS Code and PyCharm show the cells, and
# `python -m examples.first_pipeline`, in a checkout of the repository, runs them all. It needs
# `pip install 'aiokcc[spark,local]'`.

# %%
import json
import random
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import aiokcc
import aiokcc.spark
from examples.stack import Event, create, jobs, start_services, wait_for, write

# %% [markdown]
# ## Something to read
#
# A Kafka and a ZooKeeper on this machine, which end with it, and a topic with two days of measurements from 20 sensors.
# With servers of your own, write their addresses here instead and leave out the next cell.

# %%
kafka, store = start_services(sys.argv[1:])

# %%
START = 1_772_409_600_000  # 2026-03-02T00:00Z, in milliseconds
MINUTE = 60_000

chance = random.Random(1)
measurements = [
    Event(
        sensor % 4,
        START + minute * MINUTE + sensor,
        key=f"sensor-{sensor}",
        value=json.dumps({"celsius": round(15 + 8 * chance.random() + sensor / 10, 1)}),
    )
    for minute in range(0, 2 * 24 * 60, 5)
    for sensor in range(20)
]
topic = wait_for(create(kafka, "measurements", partitions=4))
wait_for(write(kafka, topic, measurements))
print(f"{len(measurements):,} measurements in {topic}")

# %% [markdown]
# ## A session
#
# A plain Spark session with the Kafka connector and settings for many small jobs. One of yours will do as well, if it has the
# connector.

# %%
spark = aiokcc.spark.session(app="first pipeline", progress=print)

# %% [markdown]
# ## What is computed
#
# A function from a DataFrame to a DataFrame. The frame has the columns of Spark's Kafka source (`key`, `value`, `topic`,
# `partition`, `offset`, `timestamp` …) and `period`, the start of the record's period.
#
# **The one rule: keep `period` in every `groupBy`, join and window.** While the pipeline catches up, one frame holds many
# periods, because that is many times faster than a job for each.


# %%
def warmest(frame: DataFrame, period: aiokcc.spark.Periods) -> DataFrame:
    """By hour and sensor: how often it was measured, and how warm it was at most."""
    celsius = F.get_json_object(F.col("value").cast("string"), "$.celsius").cast("double")
    return (
        frame.select("period", F.col("key").cast("string").alias("sensor"), celsius.alias("celsius"))
        .groupBy("period", "sensor")
        .agg(F.count("*").alias("measurements"), F.max("celsius").alias("warmest"))
    )


# %% [markdown]
# ## Run it
#
# `name` is what the pipeline is known by: started again with the same name and store, it goes on after the last hour that is
# published. `end="now"` ends at what the topics hold now; without `end` it follows them for ever.

# %%
directory = tempfile.TemporaryDirectory(prefix="first-pipeline-")  # in earnest: a place that stays
out = Path(directory.name) / "warmest"


def run() -> aiokcc.spark.Summary:
    with aiokcc.spark.replay(
        spark, topic, bootstrap_servers=kafka, store=store, name="warmest", end="now", period="1h"
    ) as replay:
        return replay.for_each_period(warmest, sink=aiokcc.spark.ParquetSink(out))


summary = run()
print(f"{summary.periods} hours, {summary.records:,} records, in {jobs(summary.jobs)}")

# %% [markdown]
# ## Look at it
#
# The result is Parquet. `aiokcc.spark.read` sees what is published and nothing else; `aiokcc.spark.files` gives the same as a
# list of files, for pandas, DuckDB or whatever reads Parquet.

# %%
result = aiokcc.spark.read(spark, out)
result.orderBy("period", F.desc("warmest")).show(5)

by_day = result.groupBy(F.to_date("period").alias("day")).agg(F.max("warmest"), F.sum("measurements"))
by_day.orderBy("day").show()

# %% [markdown]
# ## Run it again
#
# Everything is published already, so nothing is computed. It is the same after a crash: what was published stays, what was
# not is done, from exactly the records that were decided on.

# %%
summary = run()
print(f"{summary.periods} hours, {jobs(summary.jobs)}")

# %% [markdown]
# ## Next
#
# - `python -m examples.orders_and_payments`: two topics joined, event time from the records, late records, a plot
# - `docs/how-to/spark.md`: the rule, resuming, late records, groups with asyncio consumers, clusters, errors

# %%
spark.stop()
directory.cleanup()
