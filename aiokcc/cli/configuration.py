"""The configuration file ``aiokcc.toml``: profiles, each with a store, Kafka's client properties, and defaults for options.

::

    profile = "production"               # the profile to use if none is named

    [profiles.production.store]
    url = "zks://zk1:2281,zk2:2281/replay"
    ca = "ca.pem"                        # relative to this file
    auth = "env:ZK_AUTH"                 # user:password
    acl = "creator"

    [profiles.production.kafka]          # or: kafka = "client.properties"
    bootstrap.servers = "k1:9093"
    security.protocol = "SASL_SSL"
    ssl.ca.location = "ca.pem"
    sasl.mechanism = "SCRAM-SHA-512"
    sasl.username = "replay"
    sasl.password = "file:/run/secrets/kafka"

    [profiles.production.defaults]       # options of the command line
    period = "1m"

What is typed weighs more than an environment variable, and that more than the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from aiokcc.core.formatting import did_you_mean
from aiokcc.credentials import is_reference
from aiokcc.errors import UsageError

__all__ = ["CONFIG", "PROFILE", "Profile", "load_profile"]

CONFIG: Final = "AIOKCC_CONFIG"
PROFILE: Final = "AIOKCC_PROFILE"
_FILE: Final = "aiokcc.toml"
_PARTS: Final = ("store", "kafka", "defaults")
_STORE: Final = ("url", "ca", "cert", "key", "key_password", "auth", "acl")
_PATHS: Final = ("ca", "cert", "key")
_KAFKA_PATHS: Final = (
    "ssl.truststore.location",
    "ssl.keystore.location",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
_TYPED: Final = frozenset({"yes", "force", "dry-run", "config", "profile", "store", "kafka-config"})
"""Options that a file cannot give: they confirm, or have a place of their own."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile of the file."""

    name: str
    file: Path
    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    kafka: Mapping[str, str] | str | None = field(default=None, repr=False)
    """Kafka's client properties, or the path of a file with them."""
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Return where a value of this profile comes from, for messages."""
        return f"{self.file}, profile {self.name}"

    def store_url(self) -> str | None:
        """Return the store's URL with its options; a password that stands in the file is put before the ``@``."""
        url = self.store.get("url")
        return None if url is None else self._with_options(url)

    def complete(self, url: str) -> str:
        """Return a URL that was typed, with the profile's options if it names the same servers; else unchanged.

        Other servers do not get the credentials. A URL with options or credentials of its own is complete.
        """
        mine = self.store.get("url", "")
        if _servers(url) != _servers(mine) or "?" in url or "@" in url:
            return url
        return self._with_options(url)

    def _with_options(self, url: str) -> str:
        options = {name: value for name, value in self.store.items() if name != "url"}
        auth = options.get("auth")
        if auth is not None and not is_reference(auth):
            del options["auth"]
            user, _, password = auth.partition(":")
            scheme, _, rest = url.partition("://")
            url = f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"
        if not options:
            return url
        return f"{url}{'&' if '?' in url else '?'}{urlencode(options, safe=':/')}"


def _servers(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2] + url.partition("://")[0]


def load_profile(
    config: str | None, profile: str | None, environment: Mapping[str, str] = os.environ
) -> Profile | None:
    """Return the profile in force; None if there is no file, or none of its profiles is asked for.

    The file is the one that is named, or else ``aiokcc.toml`` in the current directory or in the user's configuration
    directory. Raises UsageError for a file that cannot be read, and for a profile that it does not have.
    """
    wanted = profile or environment.get(PROFILE)
    file = _find_file(config or environment.get(CONFIG), environment)
    if file is None:
        if wanted:
            raise UsageError(
                f"the profile {wanted!r} is asked for, but there is no {_FILE}; give --config FILE, or {CONFIG}"
            )
        return None
    content = _read(file)
    profiles = content.get("profiles", {})
    _check_table(profiles, f"{file}: profiles")
    for name in content:
        if name not in {"profile", "profiles"}:
            hint = did_you_mean(name, ("profile", "profiles"))
            raise UsageError(
                f"{file}: there is no key {name!r} at the top{hint}; expected [profiles.NAME.store] and so on"
            )
    if not isinstance(content.get("profile", ""), str):
        raise UsageError(f"{file}: profile has to be the name of a profile; expected [profiles.NAME.store] and so on")
    wanted = wanted or content.get("profile") or ("default" if "default" in profiles else None)
    if wanted is None:
        return None
    if wanted not in profiles:
        there = ", ".join(profiles) or "none"
        raise UsageError(
            f"{file} has no profile {wanted!r}{did_you_mean(str(wanted), profiles)}; its profiles are: {there}"
        )
    return _make(str(wanted), file, profiles[wanted])


def _find_file(named: str | None, environment: Mapping[str, str]) -> Path | None:
    if named:
        return Path(named).expanduser().absolute()
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '')}/.config"
    places = (Path(_FILE).absolute(), Path(home) / "aiokcc" / _FILE)
    return next((place for place in places if place.is_file()), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"the configuration {file} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise UsageError(f"the configuration {file} is not TOML: {error}") from None


def _make(name: str, file: Path, content: Any) -> Profile:
    where = f"{file}, profile {name}"
    _check_table(content, where)
    _check_names(content, _PARTS, where)
    store = content.get("store", {})
    store = {"url": store} if isinstance(store, str) else store
    _check_table(store, f"{where}: store")
    _check_names(store, _STORE, f"{where}: store")
    for key, value in store.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: store.{key} has to be a text")
    if store and "url" not in store:
        raise UsageError(f"{where}: store has options and no url")
    auth = store.get("auth", "env:")
    if not is_reference(auth) and not (auth.partition(":")[0] and auth.partition(":")[2]):
        raise UsageError(f"{where}: store.auth has to be user:password, or env:NAME or file:PATH that holds it")
    kafka = content.get("kafka")
    if isinstance(kafka, str):
        kafka = str(file.parent / Path(kafka).expanduser())
    elif kafka is not None:
        _check_table(kafka, f"{where}: kafka")
        kafka = _resolve(_flatten(kafka), _KAFKA_PATHS, file)
    defaults = content.get("defaults", {})
    _check_table(defaults, f"{where}: defaults")
    for key in defaults:
        if key in _TYPED:
            raise UsageError(f"{where}: defaults.{key}: --{key} cannot be a default")
    return Profile(name=name, file=file, store=_resolve(store, _PATHS, file), kafka=kafka, defaults=defaults)


def _resolve(values: Mapping[str, str], paths: tuple[str, ...], file: Path) -> dict[str, str]:
    """Return the values with paths relative to the file made absolute."""
    result = dict(values)
    for name in paths:
        if name in result and not is_reference(result[name]):
            result[name] = str(file.parent / Path(result[name]).expanduser())
    for name, value in result.items():
        if value.startswith("file:"):
            result[name] = f"file:{file.parent / Path(value.removeprefix('file:')).expanduser()}"
    return result


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return ``{"ssl.ca.location": …}`` of the nested tables that TOML makes of keys with dots."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _check_table(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} has to be a table")


def _check_names(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            raise UsageError(f"{where}: there is no {name!r}{did_you_mean(name, known)}; expected {', '.join(known)}")
