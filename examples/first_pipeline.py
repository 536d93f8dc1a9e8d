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
# If you have servers of your own, write their addresses here instead and skip the next cell.

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
# A plain Spark session with the Kafka connector and settings for many small jobs. Your own session works as well, if it has the
# connector.

# %%
spark = aiokcc.spark.session(app="first pipeline", progress=print)

# %% [markdown]
# ## The computation
#
# A function from a DataFrame to a DataFrame. The frame has the columns of Spark's Kafka source (`key`, `value`, `topic`,
# `partition`, `offset`, `timestamp` …) and `period`, the start of the record's period.
#
# **The one rule: keep `period` in every `groupBy`, join and window.** While the pipeline catches up, one frame holds many
# periods, because that is many times faster than a job for each.


# %%
def warmest(frame: DataFrame, period: aiokcc.spark.Periods) -> DataFrame:
    """Compute, by hour and sensor, how many measurements there are and the highest temperature."""
    celsius = F.get_json_object(F.col("value").cast("string"), "$.celsius").cast("double")
    return (
        frame.select("period", F.col("key").cast("string").alias("sensor"), celsius.alias("celsius"))
        .groupBy("period", "sensor")
        .agg(F.count("*").alias("measurements"), F.max("celsius").alias("warmest"))
    )


# %% [markdown]
# ## Run it
#
# `name` identifies the pipeline: started again with the same name and store, it resumes after the last hour that is
# published. `end="now"` ends where the topics end now; with `end=None` it follows them without an end.

# %%
directory = tempfile.TemporaryDirectory(prefix="first-pipeline-")  # in production: a directory that stays
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
# The result is Parquet. `aiokcc.spark.read` reads only what is published; `aiokcc.spark.files` returns the same as a
# list of files, for pandas, DuckDB or any other reader of Parquet.

# %%
result = aiokcc.spark.read(spark, out)
result.orderBy("period", F.desc("warmest")).show(5)

by_day = result.groupBy(F.to_date("period").alias("day")).agg(F.max("warmest"), F.sum("measurements"))
by_day.orderBy("day").show()

# %% [markdown]
# ## Run it again
#
# Everything is published already, so nothing is computed. After a crash it is the same: published hours stay, and
# the others are computed from exactly the records that were recorded for them.

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
