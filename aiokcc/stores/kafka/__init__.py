"""The store on Kafka: ``kafka://``, the group's tree as one topic of one partition, without any other service."""

from aiokcc.stores.kafka.store import KafkaStore

__all__ = ["KafkaStore"]
