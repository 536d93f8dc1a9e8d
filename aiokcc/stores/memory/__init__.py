"""The store in memory: ``memory://name[/root]``, for one process, with ZooKeeper's semantics.

All :class:`MemoryStore` objects of one name share one tree while any of them, or a session, is in use. Good for
notebooks, for replays on one machine, and for tests, which also play faults on ``store.server``
(:class:`MemoryServer`). ``tests/conformance`` holds it to the same behaviour as a real ZooKeeper.
"""

from aiokcc.stores.memory.server import Call, Hold, Hook, Interception, MemoryServer
from aiokcc.stores.memory.session import MemorySession
from aiokcc.stores.memory.store import MemoryStore
from aiokcc.stores.memory.watch import MemoryWatch

__all__ = ["Call", "Hold", "Hook", "Interception", "MemoryServer", "MemorySession", "MemoryStore", "MemoryWatch"]
