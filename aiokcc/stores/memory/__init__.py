"""The store in memory: ``memory://name[/root]``, for one process, with ZooKeeper's semantics.

All :class:`MemoryStore` objects of one name share one tree, which lives while any of them or a session is in use. It is for
notebooks, for replays in one process, and for tests, which also inject faults through ``store.server``
(:class:`MemoryServer`). ``tests/conformance`` checks that it behaves as a real ZooKeeper does.
"""

from aiokcc.stores.memory.server import Call, Hold, Hook, Interception, MemoryServer
from aiokcc.stores.memory.session import MemorySession
from aiokcc.stores.memory.store import MemoryStore
from aiokcc.stores.memory.watch import MemoryWatch

__all__ = ["Call", "Hold", "Hook", "Interception", "MemoryServer", "MemorySession", "MemoryStore", "MemoryWatch"]
