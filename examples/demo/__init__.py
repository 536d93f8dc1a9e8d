"""Shows what the gate is for: the same skewed Kafka topics replayed by three processes, without the gate and with it."""
