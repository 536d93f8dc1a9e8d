"""Access lists: the permissions on the nodes that this process creates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from aiokcc.errors import UsageError

__all__ = ["Acl", "AclChoice"]


@dataclass(frozen=True, slots=True)
class Acl:
    """One rule of an access list: whoever ``scheme`` identifies as ``id`` has the permissions ``perms``.

    ::

        Acl.OPEN                                        # everyone, everything: what "open" stands for
        Acl.CREATOR                                     # the user who creates the node: what "creator" stands for
        [Acl.CREATOR, Acl("world", "anyone", Acl.READ)] # and everyone may look: what "readable" stands for
        Acl("ip", "10.0.0.0/8", Acl.READ | Acl.WRITE)
    """

    scheme: str
    id: str
    perms: int

    READ: ClassVar[int] = 1
    WRITE: ClassVar[int] = 2
    CREATE: ClassVar[int] = 4
    DELETE: ClassVar[int] = 8
    ADMIN: ClassVar[int] = 16
    ALL: ClassVar[int] = 31
    OPEN: ClassVar[Acl]
    CREATOR: ClassVar[Acl]

    def __post_init__(self) -> None:
        if not 0 < self.perms <= Acl.ALL:
            raise UsageError(
                f"perms is a sum of Acl.READ, WRITE, CREATE, DELETE and ADMIN (1 to 31), not {self.perms!r}"
            )


Acl.OPEN = Acl("world", "anyone", Acl.ALL)
Acl.CREATOR = Acl("auth", "", Acl.ALL)

AclChoice: TypeAlias = "str | Acl | Sequence[Acl] | None"
"""``"open"``, ``"creator"``, ``"readable"``, a rule, or several; None: ``"creator"`` with credentials, ``"open"`` without."""

_PRESETS: Final[dict[str, tuple[Acl, ...]]] = {
    "open": (Acl.OPEN,),
    "creator": (Acl.CREATOR,),
    "readable": (Acl.CREATOR, Acl("world", "anyone", Acl.READ)),
}


def resolve_acl(choice: AclChoice, *, authenticated: bool, by_certificate: bool = False) -> tuple[Acl, ...]:
    """Return the rules of a choice. Raises UsageError if it is unknown, or if the server would refuse it.

    Under TLS the server may also know us by our certificate.
    """
    if choice is None:
        choice = "creator" if authenticated else "open"
    if isinstance(choice, str):
        if choice not in _PRESETS:
            raise UsageError(f"acl={choice!r} is not known; it is 'open', 'creator', 'readable', or a list of Acl")
        rules = _PRESETS[choice]
    else:
        rules = (choice,) if isinstance(choice, Acl) else tuple(choice)
    if not rules or not all(isinstance(rule, Acl) for rule in rules):
        raise UsageError("acl is 'open', 'creator', 'readable', an Acl, or a list of at least one Acl")
    if not authenticated and not by_certificate and any(rule.scheme == "auth" for rule in rules):
        raise UsageError("an access list for the creator needs one: give the store auth=(user, password)")
    return rules
