"""Real services on loopback, for tests, demos and trials: ``pip install 'aiokcc[local]'``.

::

    async with aiokcc.local.zookeeper() as zk:                 # about half a second
        async with aiokcc.connect(zk.url("replay"), ...) as group:
            ...

    async with aiokcc.local.zookeeper(servers=3) as zk:        # an ensemble
        leader = await zk.leader()
        await leader.kill()                                    # as a crash
        await leader.start()                                   # same port, same data

    async with aiokcc.local.kafka() as kafka:                  # about three seconds, once its jars are in the cache
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap)

    async with aiokcc.local.kafka(brokers=3) as kafka:         # a cluster, in about six seconds
        leader = await kafka.leader("orders", 0)
        await leader.kill()                                    # as a crash; kafka.leader() now waits for the next one
        await kafka.wait_in_sync("orders", 0, count=2)         # the controller has noticed
        await leader.start()                                   # same port, same data
        await kafka.wait_in_sync("orders", 0)                  # all replicas again

    async with aiokcc.local.spark(workers=2) as cluster:       # about six seconds
        spark = await asyncio.to_thread(aiokcc.spark.session, master=cluster.url)

    async with aiokcc.local.up() as services:                  # services.zookeeper and services.kafka
        ...

The services listen on 127.0.0.1 only. They end when the context ends, or when the process that started them ends, even by
SIGKILL. Temporary data are removed in both cases.
"""

from __future__ import annotations

from ._kafka import Kafka, kafka
from ._kafka_cluster import KafkaCluster, Replicas
from ._service import Service
from ._spark import SparkCluster, spark
from ._spark_files import SparkFiles, prepare_spark
from ._stack import Stack, up
from ._zookeeper import ZooKeeper, ZooKeeperServer, zookeeper

__all__ = [
    "Kafka",
    "KafkaCluster",
    "Replicas",
    "Service",
    "SparkCluster",
    "SparkFiles",
    "Stack",
    "ZooKeeper",
    "ZooKeeperServer",
    "kafka",
    "prepare_spark",
    "spark",
    "up",
    "zookeeper",
]
