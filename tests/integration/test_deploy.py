"""The files in ``examples/deploy``: linted by their own tools, and their commands run on real services.

No container is built here. What a container would run is run: the arguments, the paths of the probes, and SIGTERM.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from aiokcc.cli.arguments import parse
from aiokcc.core.periods import parse_duration
from aiokcc.local._process import free_ports
from tests.integration.cli.commands import AIOKCC, environment
from tests.integration.cli.test_replay import HANDLERS, Place, place

__all__ = ["place"]

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
CLEANUP = 7.0
"""Seconds that the command may need after ``--stop-timeout``, as its help says."""


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def check(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "aiokcc-replay.service")
    return parser["Service"]


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["replay"])


def kubernetes() -> dict[str, dict[str, Any]]:
    """Return the resources by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod() -> dict[str, Any]:
    return dict(kubernetes()["StatefulSet"]["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    return dict(pod()["containers"][0])


class TestLint:
    def test_the_containerfile(self) -> None:
        check(tool("hadolint"), str(DEPLOY / "Containerfile"))

    def test_the_compose_file(self) -> None:
        check(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))

    def test_the_manifests(self) -> None:
        assert set(kubernetes()) == {"Service", "PodDisruptionBudget", "StatefulSet"}
        for resource in kubernetes().values():
            kubernetes_validate.validate(resource, "1.33", strict=True)

    def test_the_unit(self, tmp_path: Path) -> None:
        analyze = shutil.which("systemd-analyze")
        assert analyze is not None, "this test needs systemd-analyze: apt-get install systemd"
        text = (DEPLOY / "aiokcc-replay.service").read_text()
        there = tmp_path / "aiokcc-replay.service"
        there.write_text(text.replace("/opt/aiokcc/bin/aiokcc", AIOKCC))  # it has to exist
        assert check(analyze, "verify", str(there)) == "", "an unknown setting is a warning, with the exit code 0"


class TestContainerfile:
    def test_what_it_copies_and_installs_exists(self) -> None:
        text = (DEPLOY / "Containerfile").read_text()
        for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
            for source in words.split()[:-1]:
                assert (ROOT / source).exists(), source
        (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", text)
        known = (ROOT / "pyproject.toml").read_text()
        assert all(re.search(rf"^{extra} = \[", known, re.MULTILINE) for extra in extras.split(","))

    def test_it_does_not_run_as_root(self) -> None:
        user = re.findall(r"^USER (\d+):(\d+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[-1]
        assert int(user[0]) > 0
        assert pod()["securityContext"]["runAsUser"] == int(user[0])


STORE = {"AIOKCC_STORE": "zk://zookeeper:2181/replay", "AIOKCC_BOOTSTRAP_SERVERS": "kafka:9092"}
COMMANDS = {
    "compose": lambda: (compose()["command"], compose()["environment"], compose()["stop_grace_period"]),
    "kubernetes": lambda: (
        container()["args"],
        {each["name"]: each.get("value", "pod-0") for each in container()["env"]},
        f"{pod()['terminationGracePeriodSeconds']}s",
    ),
    "systemd": lambda: (shlex.split(unit()["ExecStart"])[1:], STORE, f"{unit()['TimeoutStopSec']}s"),
}


@pytest.mark.parametrize("where", COMMANDS)
def test_the_command_is_valid_and_stops_within_the_grace_period(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, variables, grace = COMMANDS[where]()
    monkeypatch.chdir(DEPLOY)
    monkeypatch.syspath_prepend(str(DEPLOY))
    options = parse(words, variables)
    options.selected.check(options)
    assert options.metrics is not None
    assert parse_duration(grace, what="the grace period") / 1000 > options.stop_timeout + CLEANUP


def test_a_healthcheck_and_the_probes_ask_for_paths_that_are_served() -> None:
    (url,) = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", " ".join(compose()["healthcheck"]["test"]))
    assert url == ("9464", "/livez")
    paths = {name: container()[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert paths == {"livenessProbe": "/livez", "readinessProbe": "/readyz", "startupProbe": "/livez"}


async def ask(port: int, path: str) -> dict[str, Any]:
    """Ask until the answer is 200, as a probe does."""
    while True:
        try:
            answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}{path}", timeout=10)
            with answer:
                return dict(json.load(answer))
        except OSError:  # not up, or not ready
            await asyncio.sleep(0.2)


async def test_pods_of_the_manifest_join_become_ready_and_drain_on_sigterm(place: Place) -> None:
    """Two pods run the arguments of the manifest. One gets SIGTERM, and the other takes over its partitions."""
    (place.directory / "handlers.py").write_text(HANDLERS + "async def handle(record): show(record)\n")
    ports, pods = free_ports(2), list[asyncio.subprocess.Process]()
    async with AsyncExitStack() as stack:
        for number, port in enumerate(ports):
            words = [
                word.replace("$(POD_NAME)", f"aiokcc-replay-{number}").replace("0.0.0.0:9464", f"127.0.0.1:{port}")
                for word in container()["args"]
                if not word.startswith("--topic")
            ]
            process = await asyncio.create_subprocess_exec(
                AIOKCC,
                *words,
                *(f"--topic={topic}" for topic in place.topics),
                cwd=place.directory,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment(
                    **place.variables, AIOKCC_LOG_FORMAT="json", PYTHONPATH=os.environ.get("PYTHONPATH", "")
                ),
            )
            stack.callback(lambda process=process: process.kill() if process.returncode is None else None)
            pods.append(process)
        for port in ports:
            await ask(port, container()["livenessProbe"]["httpGet"]["path"])
            await ask(port, container()["readinessProbe"]["httpGet"]["path"])
        pods[0].send_signal(signal.SIGTERM)
        async with asyncio.timeout(pod()["terminationGracePeriodSeconds"]):
            _, first = await pods[0].communicate()
        assert pods[0].returncode == 143, first.decode()
        messages = [json.loads(line)["message"] for line in first.decode().splitlines()]
        assert messages[-1].startswith("The other members go on."), messages
        assert pods[1].returncode is None
        await ask(ports[1], "/readyz")
        pods[1].send_signal(signal.SIGTERM)
        _, second = await pods[1].communicate()
        assert pods[1].returncode == 143, second.decode()
