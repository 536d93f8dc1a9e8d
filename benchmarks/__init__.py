"""Benchmarks that measure aiokcc and what it is compared with in the same run: ``python -m benchmarks``."""
