"""The store behind ``zk://``: a session that survives a bad network, over aiozk's wire protocol."""

from aiokcc.stores.zookeeper.acl import Acl
from aiokcc.stores.zookeeper.store import ZooKeeperStore

__all__ = ["Acl", "ZooKeeperStore"]
