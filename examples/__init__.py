"""Runnable examples, one command each: ``python -m examples.demo``, ``.plain_asyncio``, ``.own_consumer``."""
