"""The cache of jars, fetched by the real Ivy from a small Maven repository on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import http.server
import json
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiokcc.errors import LocalServiceError
from aiokcc.local import _jars
from aiokcc.local._jars import JarSet, cache_directory, fetch
from aiokcc.local._java import find_java
from aiokcc.local._process import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.service, pytest.mark.timeout(120)]

FRUIT = JarSet("fruit-1", ("org.example:apple:1.0", "org.example.far:pear_2.13:2.5.1-rc1"), megabytes=1)


class Repository:
    """A Maven repository: its files, and what was asked of it. `gate` closed, it keeps those who ask for jars waiting."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.got: list[str] = []
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, wanted: JarSet, content: str = "jar") -> None:
        for module, file in zip(wanted.modules, wanted.files, strict=True):
            group, artifact, version = module.split(":")
            path = self.directory / group.replace(".", "/") / artifact / version / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content} {file}")
            path.with_name(f"{file}.sha1").write_text(hashlib.sha1(path.read_bytes()).hexdigest())

    @property
    def jars(self) -> list[str]:
        """The jars that were fetched from it, by name."""
        return [Path(path).name for path in self.got if path.endswith(".jar")]


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, repository: Repository, *arguments: object) -> None:
        self.repository = repository
        super().__init__(*arguments, directory=str(repository.directory))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.repository.got.append(self.path)
        self.repository.asked.set()
        self.repository.gate.wait(60)
        with contextlib.suppress(ConnectionError):
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIOKCC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    (tmp_path / "maven").mkdir()
    repository = Repository(tmp_path / "maven")
    repository.publish(FRUIT)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, repository)) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("AIOKCC_MAVEN", f"http://127.0.0.1:{server.server_port}/")
        try:
            yield repository
        finally:
            repository.gate.set()
            server.shutdown()
            serving.join()


@pytest.fixture
def java() -> str:
    return find_java(11)


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} if cache.exists() else set()


async def test_fetched_once_and_then_taken_from_the_cache(cache: Path, repository: Repository, java: str) -> None:
    said: list[str] = []
    jars = await fetch(FRUIT, java, said.append)
    assert jars == [cache / "fruit-1" / "apple-1.0.jar", cache / "fruit-1" / "pear_2.13-2.5.1-rc1.jar"]
    assert [jar.read_text() for jar in jars] == ["jar apple-1.0.jar", "jar pear_2.13-2.5.1-rc1.jar"]
    assert said == [
        f"Fetching fruit-1 once: 2 jars, 1 MB, into {cache / 'fruit-1'}",
        "1 of 2: apple 1.0",
        "2 of 2: pear_2.13 2.5.1-rc1",
    ]
    assert left_in(cache) == {"fruit-1", "fruit-1.lock"}
    said.clear()
    repository.got.clear()
    assert await fetch(FRUIT, java, said.append) == jars
    assert said == repository.got == []


@pytest.mark.parametrize("damage", ["changed", "same size", "missing", "torn manifest", "other manifest"])
async def test_a_damaged_set_is_found_and_fetched_again(
    damage: str, cache: Path, repository: Repository, java: str
) -> None:
    apple, _ = await fetch(FRUIT, java, lambda _: None)
    manifest = apple.with_name("manifest.json")
    match damage:
        case "changed":
            apple.write_text("rotten")
        case "same size":
            apple.write_text("jar apple-1.0.jaR")
        case "missing":
            apple.unlink()
        case "torn manifest":
            manifest.write_text(manifest.read_text()[:40])
        case "other manifest":
            manifest.write_text(json.dumps({"sha256": {}}))
    said: list[str] = []
    assert (await fetch(FRUIT, java, said.append))[0].read_text() == "jar apple-1.0.jar"
    assert said[0].endswith(": fetching it again")
    assert repository.jars.count("apple-1.0.jar") == 2
    assert left_in(cache) == {"fruit-1", "fruit-1.lock"}


async def test_a_jar_that_is_not_what_the_repository_says_is_refused(
    cache: Path, repository: Repository, java: str
) -> None:
    path = repository.directory / "org/example/apple/1.0/apple-1.0.jar"
    path.write_text("something else")
    with pytest.raises(LocalServiceError, match=r"could not be fetched .*invalid sha1"):
        await fetch(FRUIT, java, lambda _: None)
    assert left_in(cache) == {"fruit-1.lock"}


async def test_a_jar_that_the_repository_does_not_have(cache: Path, repository: Repository, java: str) -> None:
    grape = JarSet("grape-1", ("org.example:grape:1.0",), megabytes=1)
    with pytest.raises(LocalServiceError, match=r"module not found: org.example#grape;1.0"):
        await fetch(grape, java, lambda _: None)
    assert left_in(cache) == {"grape-1.lock"}


async def test_without_network_and_cache_the_error_says_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, java: str
) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("AIOKCC_MAVEN", f"http://me:secret@127.0.0.1:{port}/maven")
    with pytest.raises(LocalServiceError) as caught:
        await fetch(FRUIT, java, lambda _: None)
    text = str(caught.value)
    assert f"fruit-1 is not in the cache {cache / 'fruit-1'}" in text
    assert f"could not be fetched from http://127.0.0.1:{port}/maven: Server access error" in text
    assert "Connection refused" in text
    assert "`aiokcc local kafka`" in text
    assert "AIOKCC_MAVEN" in text
    assert "secret" not in text
    assert left_in(cache) == {"fruit-1.lock"}


async def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIOKCC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(LocalServiceError, match="Set AIOKCC_CACHE to a directory"):
        await fetch(FRUIT, java, lambda _: None)


async def test_cancelled_it_leaves_nothing(cache: Path, repository: Repository, java: str) -> None:
    repository.gate.clear()
    fetching = asyncio.create_task(fetch(FRUIT, java, lambda _: None))
    assert await asyncio.to_thread(repository.asked.wait, 60)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert left_in(cache) == {"fruit-1.lock"}
    repository.gate.set()
    assert await fetch(FRUIT, java, lambda _: None)


PROGRAM = """
    import asyncio, sys
    from aiokcc.local._jars import JarSet, fetch
    from aiokcc.local._java import find_java

    wanted = JarSet({name!r}, {modules!r}, megabytes=1)
    jars = asyncio.run(fetch(wanted, find_java(11), lambda line: print(line, flush=True)))
    print(*(jar.read_text() for jar in jars), sep=",")
"""


async def start_fetching() -> asyncio.subprocess.Process:
    program = textwrap.dedent(PROGRAM).format(name=FRUIT.name, modules=FRUIT.modules)
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)


async def test_two_processes_at_once_fetch_once(cache: Path, repository: Repository) -> None:
    repository.gate.clear()
    first = await start_fetching()
    assert await asyncio.to_thread(repository.asked.wait, 60)
    second = await start_fetching()
    assert second.stdout is not None
    assert await second.stdout.readline() == b"Another process fetches fruit-1: waiting \xe2\x80\xa6\n"
    repository.gate.set()
    answers = [await process.communicate() for process in (first, second)]
    assert [out.splitlines()[-1] for out, _ in answers] == [b"jar apple-1.0.jar,jar pear_2.13-2.5.1-rc1.jar"] * 2
    assert sorted(repository.jars) == sorted(FRUIT.files)


async def test_the_next_fetches_when_the_first_is_killed(cache: Path, repository: Repository) -> None:
    repository.gate.clear()
    first = await start_fetching()
    assert await asyncio.to_thread(repository.asked.wait, 60)
    second = await start_fetching()
    assert second.stdout is not None
    await second.stdout.readline()
    first.kill()
    await (
        first.communicate()
    )  # its supervisor holds the pipe: at its end the Java process and the half set are gone too
    repository.gate.set()
    out, _ = await second.communicate()
    assert out.splitlines()[-1] == b"jar apple-1.0.jar,jar pear_2.13-2.5.1-rc1.jar"
    assert left_in(cache) == {"fruit-1", "fruit-1.lock"}


async def test_cancelled_while_another_fetches(cache: Path, java: str) -> None:
    cache.mkdir(parents=True)
    waiting = asyncio.Event()
    async with _jars._exclusive_lock(cache / "fruit-1.lock", lambda: None):
        second = asyncio.create_task(fetch(FRUIT, java, lambda _: waiting.set()))
        await waiting.wait()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second


# Where from, and where to


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AIOKCC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "aiokcc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/not/allowed")
    assert cache_directory() == tmp_path / ".cache" / "aiokcc"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_directory() == Path("/var/cache/me/aiokcc")
    monkeypatch.setenv("AIOKCC_CACHE", "/elsewhere")
    assert cache_directory() == Path("/elsewhere")


@pytest.mark.parametrize(
    ("of", "used"),
    [("central", True), ("*", True), ("external:*", True), ("a, central", True), ("*,!central", False), ("b", False)],
)
def test_a_mirror_in_mavens_settings_is_used(
    of: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AIOKCC_MAVEN", raising=False)
    assert _jars._repository() is None
    (tmp_path / ".m2").mkdir()
    settings = tmp_path / ".m2" / "settings.xml"
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>'
        f"<mirror><id>m</id><url> http://mirror.example/m2 </url><mirrorOf>{of}</mirrorOf></mirror></mirrors></settings>"
    )
    assert _jars._repository() == ("http://mirror.example/m2" if used else None)
    settings.write_text("<settings>")
    assert _jars._repository() is None


def test_the_usual_proxy_variables_reach_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert _jars._proxies() == []
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "a.example,.b.example")
    assert _jars._proxies() == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|127.*|a.example|*.b.example",
    ]
