"""aiokcc: keep many Kafka partitions in step in event time."""
