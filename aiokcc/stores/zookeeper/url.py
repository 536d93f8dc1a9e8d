"""Parses ``zk://`` and ``zks://`` URLs: servers, root, credentials and options. An error never contains a password."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Final, NoReturn
from urllib.parse import parse_qsl, unquote

from aiokcc.core.masking import mask_url
from aiokcc.credentials import is_reference
from aiokcc.errors import UsageError
from aiokcc.stores.checks import check_root

__all__ = ["DEFAULT_PORT", "DEFAULT_TLS_PORT", "FORM", "TLS_OPTIONS", "ZooKeeperUrl", "parse_url"]

DEFAULT_PORT: Final = 2181
DEFAULT_TLS_PORT: Final = 2281
FORM: Final = "write zk://[user:password@]host[:port][,host[:port]…][/root], as in 'zk://127.0.0.1:2181/replay'"
TLS_OPTIONS: Final = ("ca", "cert", "key", "key_password")
_OPTIONS: Final = ("auth", "acl", *TLS_OPTIONS)
_OPTIONS_FORM: Final = "options look like ?ca=FILE&cert=FILE&key=FILE&key_password=env:NAME&auth=env:NAME&acl=creator"
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[^\s\[\]:@/?#,]+))(?::(?P<port>.*))?")


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """The parts of a URL."""

    tls: bool
    servers: tuple[tuple[str, int], ...]
    root: str
    auth: tuple[str, str] | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict, repr=False)


def parse_url(url: str) -> ZooKeeperUrl:
    """Return the parts of a URL. Raises UsageError if it is invalid."""
    scheme = re.match("zks?://", url) if isinstance(url, str) else None
    if scheme is None:
        _refuse(url, "it does not begin with zk:// or zks://")
    tls = scheme[0] == "zks://"
    # A '@', '/' or '?' in the password is written %40, %2F or %3F.
    authority, slash, path = url[scheme.end() :].partition("/")
    secret, at, hosts = authority.rpartition("@")
    auth = None
    if at:
        user, colon, password = secret.partition(":")
        if not (user and colon and password):
            _refuse(url, "before the '@' there must be a user and a password, 'user:password@'")
        auth = unquote(user), unquote(password)
    if not slash:
        hosts, mark, query = hosts.partition("?")
        root = ""
    else:
        root, mark, query = path.partition("?")
    if "#" in hosts + root + query or "?" in hosts:
        _refuse(url, f"it contains a '{'#' if '#' in hosts + root + query else '?'}' where none is expected")
    if not at and "@" in root and not all(map(_is_server, hosts.split(","))):
        _refuse(url, "a '/' in the user or the password is written %2F")
    default = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
    servers = tuple(_server(url, host, default) for host in hosts.split(","))
    options = _options(url, query, tls) if mark else {}
    if auth is not None and "auth" in options:
        _refuse(url, "it has a user and a password before the '@', and the option auth as well")
    return ZooKeeperUrl(tls, servers, check_root(slash + root), auth, options)


def _server(url: str, host: str, default: int) -> tuple[str, int]:
    found = _HOST.fullmatch(host)
    if found is None:
        _refuse(url, f"{mask_url(host)!r} is not a host and port" if host else "a host is missing")
    port = found["port"]
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        # What does not look like a port may be a password behind which the '@' is missing.
        shown = repr(port) if re.fullmatch("[0-9]{0,5}", port) else "what stands behind the ':'"
        _refuse(url, f"{shown} is not a port number from 1 to 65535")
    return found["six"] or found["name"], default if port is None else int(port)


def _options(url: str, query: str, tls: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        _refuse(url, f"what stands behind the '?' is not a list of options; {_OPTIONS_FORM}")
    for name, value in pairs:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            shown = repr(name) if re.fullmatch(r"\w{1,30}", name) else "one of this name"
            _refuse(url, f"there is no option {shown}{hint}; {_OPTIONS_FORM}")
        if name in options:
            _refuse(url, f"the option {name} is given twice")
        if not value:
            _refuse(url, f"the option {name} is empty")
        if name in {"auth", "key_password"} and not is_reference(value):
            # A command line can be read by everybody on the machine.
            _refuse(url, f"the option {name} says where the secret is found: {name}=env:NAME or {name}=file:PATH")
        if name in TLS_OPTIONS and not tls:
            _refuse(url, f"the option {name} is for TLS; write zks:// in place of zk://")
        options[name] = value
    return options


def _is_server(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and (found["port"] or "1").isdecimal()


def _refuse(url: object, problem: str) -> NoReturn:
    shown = repr(mask_url(url)) if isinstance(url, str) else mask_url(repr(url))
    raise UsageError(f"{shown} is not the URL of a ZooKeeper: {problem}; {FORM}; zks:// is for TLS")
