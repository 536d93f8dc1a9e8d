"""The store for ``zk://`` URLs: a session that survives network faults, over aiozk's wire protocol."""

from aiokcc.stores.zookeeper.acl import Acl
from aiokcc.stores.zookeeper.store import ZooKeeperStore

__all__ = ["Acl", "ZooKeeperStore"]
