"""A Spark pipeline over records in Avro, whose schemas are in a Schema Registry, and over their headers.

Each value is in Confluent's wire format: a zero byte, the number of the schema in four bytes, and the record in Avro. The
orders of the second day are written with a second schema, which has one more field. The pipeline reads all of them with the
schema that it knows: orders that lack the field get its default.

``python -m examples.avro_orders`` starts what it needs, a small registry included. With ``HOST:PORT zk://HOST:PORT/root`` it
uses your Kafka and ZooKeeper. It needs ``pip install fastavro``, on the workers too.
"""

from __future__ import annotations

import asyncio
import collections
import io
import sys
import tempfile
from pathlib import Path

import fastavro
from aiokafka import AIOKafkaProducer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import aiokcc.spark
from examples.avro_orders.decoder import decoder
from examples.avro_orders.registry import registry
from examples.stack import create, start_services, wait_for

HOUR = 3_600_000
START = 1_772_409_600_000  # 2026-03-02T00:00Z, in milliseconds
FIELDS = [{"name": "country", "type": "string"}, {"name": "cents", "type": "long"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
ORDER_WITH_COUPON = {**ORDER, "fields": [*FIELDS, {"name": "coupon", "type": "string", "default": "none"}]}

Order = tuple[int, int, dict[str, object], str]


def some_orders() -> list[Order]:
    """Return orders of two days: time, number of the schema, content, and the shop, which is in a header."""
    orders: list[Order] = []
    for n in range(480):
        content: dict[str, object] = {"country": "NL" if n % 3 else "BE", "cents": n}
        if is_second_day := n >= 240:
            content["coupon"] = "spring" if n % 10 == 0 else "none"
        orders.append((START + n * HOUR // 10, 2 if is_second_day else 1, content, "web" if n % 2 else "store"))
    return orders


async def write(servers: str, topic: str, orders: list[Order]) -> None:
    """Write orders as a producer with Confluent's serializer does."""
    schemas = {1: fastavro.parse_schema(ORDER), 2: fastavro.parse_schema(ORDER_WITH_COUPON)}
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        sent: list[asyncio.Future[object]] = []
        for ts, number, content, shop in orders:
            value = io.BytesIO()
            value.write(b"\0" + number.to_bytes(4))
            fastavro.schemaless_writer(value, schemas[number], content)
            headers = [("shop", shop.encode())]
            sent.append(
                await producer.send(topic, value.getvalue(), partition=len(sent) % 2, timestamp_ms=ts, headers=headers)
            )
        await asyncio.gather(*sent)


def main(given: list[str]) -> None:
    """Write the orders, compute the revenue by hour, shop and coupon, and compare it with a count by hand."""
    services = start_services(given)
    servers, orders = services.bootstrap_servers, some_orders()
    topic = wait_for(create(servers, "orders", partitions=2))
    wait_for(write(servers, topic, orders))
    spark = aiokcc.spark.session(app="avro orders")
    with (
        registry({1: ORDER, 2: ORDER_WITH_COUPON}) as url,
        tempfile.TemporaryDirectory(prefix="avro-orders-") as out,
    ):
        order = decoder(url, ORDER_WITH_COUPON, "country string, cents long, coupon string")

        def revenue(frame: DataFrame, _: aiokcc.spark.Periods) -> DataFrame:
            shop = F.expr("cast(filter(headers, h -> h.key = 'shop')[0].value as string)")
            orders = frame.select("period", shop.alias("shop"), order("value").alias("o"))
            return orders.groupBy("period", "shop", "o.coupon").agg(F.sum("o.cents").alias("cents"))

        with aiokcc.spark.replay(
            spark,
            topic,
            bootstrap_servers=servers,
            store=services.store,
            name="revenue",
            period="1h",
            end="now",
            kafka_options={"includeHeaders": "true"},
            keeps_periods=True,  # the decoder looks at each row alone, and `revenue` groups by the period
        ) as replay:
            summary = replay.for_each_period(revenue, sink=aiokcc.spark.ParquetSink(Path(out) / "revenue"))
        print(f"{summary.periods} hours, {summary.records} orders in Avro")
        result = aiokcc.spark.read(spark, Path(out) / "revenue")
        totals = result.groupBy("shop", "coupon").agg(F.sum("cents").alias("cents")).orderBy("shop", "coupon")
        totals.show()
        by_hand: collections.Counter[tuple[str, str]] = collections.Counter()
        for _, _, content, shop in orders:
            by_hand[shop, str(content.get("coupon", "none"))] += int(str(content["cents"]))
        if {(row["shop"], row["coupon"]): row["cents"] for row in totals.collect()} != by_hand:
            sys.exit(f"the figures differ from {by_hand}")
        print("The same as by hand.")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
