"""What the gate is for: the same skewed partitions read by three processes, without the gate and with it."""
