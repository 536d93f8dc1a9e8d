"""The balance of each account after every six hours: state that goes from period to period, and goes on the next day.

python -m examples.balances                     starts Kafka, ZooKeeper and Spark on this machine
python -m examples.balances KAFKA ZOOKEEPER     uses these: 127.0.0.1:9092 zk://127.0.0.1:2181
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import aiokcc.spark
from examples.stack import Event, create, start_services, wait_for, write

START = 1_772_409_600_000  # 2026-03-02T00:00Z, in milliseconds
MINUTE = 60_000
DAY = 24 * 60 * MINUTE


def balances(frame: DataFrame, _period: aiokcc.spark.Periods, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the new balance of each account that was booked on in this period, and the balances of all accounts after it."""
    booked = F.from_json(F.col("value").cast("string"), "cents bigint")["cents"]
    now = frame.select(F.col("key").cast("string").alias("account"), booked.alias("cents"))
    after = state.unionByName(now).groupBy("account").agg(F.sum("cents").alias("cents"))
    return now.select("account").distinct().join(after, "account"), after


def bookings(chance: random.Random, day: int) -> list[Event]:
    """Return the bookings of a day, every ten minutes, on some of five accounts."""
    return [
        Event(
            chance.randrange(2),
            START + day * DAY + minute * MINUTE,
            key=f"account-{chance.randrange(5)}",
            value=json.dumps({"cents": chance.randrange(-5_000, 10_000)}),
        )
        for minute in range(0, 24 * 60, 10)
    ]


def main() -> None:
    """Publish two days, one start for each, as a scheduler would."""
    kafka, store = start_services(sys.argv[1:])
    chance, written = random.Random(3), list[Event]()
    topic = wait_for(create(kafka, "bookings", partitions=2))
    spark = aiokcc.spark.session(app="balances", progress=print)
    with tempfile.TemporaryDirectory(prefix="balances-") as directory:
        out = Path(directory) / "balances"
        for day in (0, 1):
            written += bookings(chance, day)
            wait_for(write(kafka, topic, written[-144:]))
            with aiokcc.spark.replay(
                spark,
                topic,
                bootstrap_servers=kafka,
                store=store,
                name="balances",
                period="6h",
                trigger="available_now",
            ) as replay:
                done = replay.for_each_period(
                    balances, aiokcc.spark.ParquetSink(out), state="account string, cents bigint"
                )
            print(f"day {day + 1}: {done.periods} periods, {done.records} bookings")
            aiokcc.spark.read_state(spark, out).orderBy("account").show()
        first = aiokcc.spark.read_state(spark, out, at=START + DAY).agg(F.sum("cents")).first()
        last = aiokcc.spark.read_state(spark, out).agg(F.sum("cents")).first()
    spark.stop()
    by_hand = sum(json.loads(event.value)["cents"] for event in written)
    print(f"all accounts: {first[0]} cents after the first day, {last[0]} after the second, {by_hand} by hand")


if __name__ == "__main__":
    main()
