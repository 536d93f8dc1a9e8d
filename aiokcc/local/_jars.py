"""Jars from a Maven repository: fetched once with Ivy, kept in the user's cache, and checked at each use.

Ivy is part of the pyspark package, so nothing has to be installed for this. It gets exact names and versions and resolves no
dependencies, so that the set of jars is always the same, and the fetch takes a third of the time.

The cache has one directory for each set of jars, with a manifest of their SHA-256. Ivy checks each jar against the checksum
that the repository publishes. The manifest records what was received, so that a later change of a jar is noticed. A directory
is filled under another name and renamed when it is complete, so there is never half a set. A lock lets one process at a time
fill it, so two processes that start together fetch once.

=================  =====================================================================================================
``AIOKCC_CACHE``   the directory of the cache; default: ``aiokcc`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``
``AIOKCC_MAVEN``   the URL of the repository; default: the mirror of Maven's own ``settings.xml``, else Maven Central
``HTTPS_PROXY``    the proxy; ``HTTP_PROXY`` and ``NO_PROXY`` are used too
=================  =====================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import tempfile
import threading
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from aiokcc.errors import LocalServiceError

from ._java import class_path
from ._process import Process, supervise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Progress = Callable[[str], None]

_MANIFEST: Final = "manifest.json"
_FETCH_TIMEOUT: Final = 1800.0
_FETCHED_LINE: Final = re.compile(r"\[SUCCESSFUL ] [^#]+#([^;]+);([^!]+)!")
# The most specific first: if a server cannot be reached, Ivy also reports every module as not found.
_ERROR_LINES: Final = (r"Server access error.*", r"invalid (?:sha|md)\w+: .*", r"module not found: .*")


@dataclass(frozen=True, slots=True)
class JarSet:
    """A named set of jars; each module is ``group:artifact:version``."""

    name: str
    modules: tuple[str, ...]
    megabytes: int
    fetched_by: str = "`aiokcc local kafka`"

    @property
    def files(self) -> list[str]:
        """The file names of the jars, in the order of the modules."""
        return ["{1}-{2}.jar".format(*module.split(":")) for module in self.modules]


def ignore_progress(_: str) -> None:
    """Take a line about progress and do nothing with it."""


def cache_directory() -> Path:
    """Return the directory of the cache, which may not exist yet."""
    if chosen := os.environ.get("AIOKCC_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "aiokcc"


async def fetch(jar_set: JarSet, java: str, progress: Progress) -> list[Path]:
    """Return the paths of the jars; fetch them if they are missing or damaged. `progress` is called with lines of text.

    Cancelling leaves the cache as it was and no process behind.

    Raises:
        LocalServiceError: the jars could not be fetched; the message says why and what would help.
    """
    directory = cache_directory() / "jars" / jar_set.name
    if not await asyncio.to_thread(_find_damage, directory, jar_set):
        return [directory / file for file in jar_set.files]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        async with _exclusive_lock(
            directory.with_name(f"{jar_set.name}.lock"),
            lambda: progress(f"Another process fetches {jar_set.name}: waiting …"),
        ):
            damage = await asyncio.to_thread(_find_damage, directory, jar_set)  # another process may have fetched them
            if damage:
                if directory.exists():
                    progress(f"{damage}: fetching it again")
                await _fetch_into(directory, jar_set, java, progress)
    except OSError as error:
        raise LocalServiceError(
            f"{jar_set.name} cannot be written to the cache {directory}: {error.strerror or error}. Set AIOKCC_CACHE to a "
            f"directory that can be written"
        ) from error
    return [directory / file for file in jar_set.files]


def _find_damage(directory: Path, jar_set: JarSet) -> str:
    """Return what is wrong with a cached set; an empty string if it is complete."""
    try:
        recorded = json.loads((directory / _MANIFEST).read_text())["sha256"]
        for file in jar_set.files:
            path = directory / file
            if file not in recorded:
                return f"{path} is not in the manifest"
            status = path.stat()
            if _sha256(path, status.st_size, status.st_mtime_ns) != recorded[file]:
                return f"{path} is damaged"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{directory} cannot be read ({error})"
    return ""


@functools.cache
def _sha256(path: Path, size: int, modified: int) -> str:  # noqa: ARG001 - cache keys: a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.asynccontextmanager
async def _exclusive_lock(lock: Path, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Hold an exclusive lock on a file; call `waiting` if another process holds it. The lock ends with this process."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            await _blocking_lock(os.dup(descriptor))
        yield
    finally:
        os.close(descriptor)


async def _blocking_lock(descriptor: int) -> None:
    """Take a lock in a daemon thread. If cancelled, the thread releases the lock as soon as it gets it."""
    loop = asyncio.get_running_loop()
    locked = loop.create_future()

    def settle(error: OSError | None) -> None:
        if not locked.done():
            locked.set_result(None) if error is None else locked.set_exception(error)

    def wait() -> None:
        failure = None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            failure = error
        finally:
            os.close(descriptor)  # a duplicate: the lock remains while the original is open
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=wait, daemon=True).start()
    await locked


async def _fetch_into(directory: Path, jar_set: JarSet, java: str, progress: Progress) -> None:
    total = len(jar_set.modules)
    progress(f"Fetching {jar_set.name} once: {total} jars, {jar_set.megabytes} MB, into {directory}")
    # It is on the same file system, so that it can be renamed. The supervisor removes it, even if this process is killed.
    work = Path(tempfile.mkdtemp(prefix=f".{jar_set.name}-", dir=directory.parent))
    repository, jars = _repository(), work / "jars"
    fetched: list[str] = []

    def on_line(line: str) -> None:
        if match := _FETCHED_LINE.search(line):
            fetched.append(match[1])
            progress(f"{len(fetched)} of {total}: {match[1]} {match[2]}")

    async with supervise(work) as supervisor:
        settings, module = work / "settings.xml", work / "ivy.xml"
        settings.write_text(_ivy_settings(repository))
        module.write_text(_ivy_module(jar_set))
        command = [java, *_proxies(), "-cp", class_path("ivy-*.jar"), "org.apache.ivy.Main"]
        command += ["-settings", str(settings), "-cache", str(work / "ivy"), "-ivy", str(module), "-confs", "default"]
        command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
        ivy = Process(supervisor, "ivy", command, work / "ivy.log", on_line=on_line)
        try:
            await ivy.run(_FETCH_TIMEOUT)
        except LocalServiceError as error:
            raise _fetch_error(jar_set, directory, repository, ivy.log, error) from None
        await asyncio.to_thread(_write_manifest, jars, jar_set)
        if directory.exists():
            directory.rename(work / "before")
        jars.rename(directory)


def _write_manifest(jars: Path, jar_set: JarSet) -> None:
    hashes = {}
    for file in jar_set.files:
        with (jars / file).open("rb") as jar:
            hashes[file] = hashlib.file_digest(jar, "sha256").hexdigest()
            os.fsync(jar.fileno())  # else after a power cut the manifest may exist without the jar, and we fetch again
    (jars / _MANIFEST).write_text(json.dumps({"modules": jar_set.modules, "sha256": hashes}, indent=1) + "\n")


def _fetch_error(
    jar_set: JarSet, directory: Path, repository: str | None, log: Path, error: LocalServiceError
) -> LocalServiceError:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        text = ""
    problem = next((found[0].strip() for pattern in _ERROR_LINES if (found := re.search(pattern, text))), "")
    where = _without_password(repository) if repository else "Maven Central"
    why = f": {_without_password(problem)}" if problem else ""
    return LocalServiceError(
        f"{jar_set.name} is not in the cache {directory} and could not be fetched from {where}{why}. It is needed once "
        f"({jar_set.megabytes} MB). With access to the network {jar_set.fetched_by} fetches it; or copy that directory "
        f"from a machine that has it; or set AIOKCC_MAVEN to the URL of a Maven repository within reach",
        "" if problem else error.log,
    )


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


# Ivy's settings


def _ivy_settings(repository: str | None) -> str:
    # Without `root`, Ivy uses Maven Central. Without POMs it fetches exactly the modules of our list.
    root = f" root={quoteattr(repository)}" if repository else ""
    return (
        '<ivysettings>\n  <settings defaultResolver="maven"/>\n'
        '  <timeout-constraints><timeout-constraint name="patience" connectionTimeout="15000" readTimeout="60000"/>'
        "</timeout-constraints>\n"
        f'  <resolvers><ibiblio name="maven" m2compatible="true" usepoms="false" useMavenMetadata="false"'
        f' checksums="sha1" timeoutConstraint="patience"{root}/></resolvers>\n'
        "</ivysettings>\n"
    )


def _ivy_module(jar_set: JarSet) -> str:
    rows = []
    for module in jar_set.modules:
        group, artifact, version = module.split(":")
        rows.append(
            f'    <dependency org="{group}" name="{artifact}" rev="{version}" conf="default->default" transitive="false"/>'
        )
    return (
        '<ivy-module version="2.0">\n  <info organisation="aiokcc" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n  <dependencies>\n'
        + "\n".join(rows)
        + "\n  </dependencies>\n</ivy-module>\n"
    )


def _repository() -> str | None:
    """Return the URL of the repository; None means Maven Central."""
    if chosen := os.environ.get("AIOKCC_MAVEN"):
        return chosen
    settings = Path.home() / ".m2" / "settings.xml"
    try:
        mirrors = ElementTree.parse(settings).iterfind("{*}mirrors/{*}mirror")  # noqa: S314 - the user's own file
    except (OSError, ElementTree.ParseError):
        return None
    for mirror in mirrors:
        of = {name.strip() for name in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if of & {"*", "central", "external:*"} and "!central" not in of:
            return (mirror.findtext("{*}url") or "").strip() or None
    return None


def _proxies() -> list[str]:
    """Return the proxies of the environment variables as Java system properties; Java does not read the variables."""
    options = []
    proxies = urllib.request.getproxies_environment()
    for scheme in ("http", "https"):
        proxy = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            port = proxy.port or (443 if proxy.scheme == "https" else 80)
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={port}"]
    if options and (direct := proxies.get("no")):
        hosts = [host.strip() for host in direct.split(",") if host.strip()]
        hosts = [f"*{host}" if host.startswith(".") else host for host in hosts]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(['localhost', '127.*', *hosts])}")
    return options
