"""The server of the dashboard, over real connections, with a group in the memory store."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

import aiokcc
from aiokcc.cli.argument_types import listen_address
from aiokcc.dashboard import feed, overview
from aiokcc.dashboard.app import Dashboard, DashboardOptions, _cookie, _read
from aiokcc.dashboard.server import bind, check_token, serve
from aiokcc.errors import NoAuthError, UsageError
from aiokcc.runtime.follow import follow
from aiokcc.runtime.metrics import collect

TOPICS = {"orders": 2, "payments": 1}
TOKEN = "a1b2c3d4e5f6a7b8c9"


@dataclass
class Running:
    """A dashboard that is served, and a client of it."""

    dashboard: Dashboard
    client: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def page(self, path: str = "/events") -> AsyncIterator[Page]:
        async with self.client.stream("GET", path) as response:
            assert response.status_code == 200
            yield Page(response)


class Page:
    """Reads the events of one stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def event(self, kind: str, matches: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the data of the next event of this kind that matches."""
        found = False
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line.startswith("event: "):
                    found = line == f"event: {kind}"
                elif line.startswith("data: ") and found:
                    data = json.loads(line.removeprefix("data: "))
                    if matches(data):
                        return data
        raise AssertionError(f"the stream ended without {kind}")


@contextlib.asynccontextmanager
async def serving(url: str, **options: Any) -> AsyncIterator[Running]:
    dashboard = Dashboard(aiokcc.open_store(url), DashboardOptions(**options))
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    ready = asyncio.Event()
    task = asyncio.ensure_future(serve(dashboard, listening, ready.set))
    limits = httpx.Limits(max_connections=100)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, limits=limits) as client:
            yield Running(dashboard, client)
    finally:
        task.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def group_of(url: str, **settings: Any) -> AsyncIterator[aiokcc.Group]:
    async with aiokcc.connect(url, topics=TOPICS, start=0, period="1m", member="one", **settings) as group:
        yield group


class TestWhatAPageGets:
    async def test_the_blockers_in_words(self) -> None:
        url = "memory://dashboard-blocks/replay"
        async with group_of(url), serving(url) as running, running.page() as page:
            view = await page.event("view", lambda view: view.get("verdict") == "blocked")
            assert view["why"].startswith("Blocked for ")
            assert view["blocking"]["columns"] == ["partition", "member", "for", "why"]
            assert {row[0] for row in view["blocking"]["rows"]} == {"orders.0", "orders.1", "payments.0"}
            tables = await page.event("tables")
            assert [table["title"] for table in tables] == ["Members (1)", "Partitions (3)"]

    async def test_a_root_without_a_group_is_waited_for(self) -> None:
        url = "memory://dashboard-missing/replay"
        async with serving(url) as running, running.page("/overview") as page:
            missing = await page.event("overview", lambda seen: seen["missing"])
            assert "there is no group under" in missing["missing"]
            async with group_of(url):
                await page.event("overview", lambda seen: seen["group"])
                async with running.page() as opened:
                    await opened.event("view", lambda view: "verdict" in view)

    async def test_a_store_that_refuses_us_is_asked_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """ZooKeeper tells nobody that a permission was given. The page says that it waits, so the server does."""
        url = "memory://dashboard-refused/replay"
        pauses = (0.01, 0.02)
        refusals = {"feed": 2, "overview": 2}
        for module in (feed, overview):
            monkeypatch.setattr(module, "RETRY_SECONDS", pauses)
        changes = overview.Overview._changes

        async def refuse_first(*args: Any, **settings: Any) -> None:
            if refusals_left("feed") >= 0:
                raise ExceptionGroup("", [NoAuthError("/replay")])
            await follow(*args, **settings)

        async def refuse_changes(self: overview.Overview, watch: Any) -> Any:
            if refusals_left("overview") >= 0:
                raise NoAuthError("/replay")
            return await changes(self, watch)

        def refusals_left(what: str) -> int:
            refusals[what] -= 1
            return refusals[what]

        monkeypatch.setattr(feed, "follow", refuse_first)
        monkeypatch.setattr(overview.Overview, "_changes", refuse_changes)
        async with group_of(url), serving(url) as running, running.page("/overview") as page:
            await page.event("overview", lambda seen: seen.get("group"))
            async with running.page() as opened:
                await opened.event("view", lambda view: "verdict" in view)
        assert max(refusals.values()) < 0

    async def test_a_group_that_ends_stays_on_the_page(self) -> None:
        url = "memory://dashboard-ends/replay"
        async with serving(url) as running:
            async with group_of(url, end=60_000) as group:
                async with running.page() as page:
                    await page.event("view", lambda view: "verdict" in view)
                    async with asyncio.TaskGroup() as tasks:
                        for topic, number in TOPICS.items():
                            for n in range(number):
                                tasks.create_task(finish(group, topic, n))
                    view = await page.event("view", lambda view: view["verdict"] == "ended")
                    assert view["why"].startswith("The run has ended")

    async def test_groups_below_a_prefix_have_one_line_each(self) -> None:
        url = "memory://dashboard-many/all"
        async with group_of(f"{url}/one"), group_of(f"{url}/two"), serving(url) as running:
            async with running.page("/overview") as page:
                seen = await page.event("overview", lambda seen: len(seen["table"]["rows"]) == 2)
                assert [row[:2] for row in seen["table"]["rows"]] == [["one", "running"], ["two", "running"]]
            async with running.page("/events?group=two") as page:
                view = await page.event("view", lambda view: "verdict" in view)
                assert view["where"].endswith("/all/two")
            refused = await running.client.get("/metrics?group=three")
            assert (refused.status_code, refused.text) == (404, "there is no group 'three' under /all")
            async with running.page("/events?group=three") as page:  # a bookmark of a group that is not there yet
                seen = await page.event("view")
                assert seen["missing"] == "there is no group 'three' under /all"
                assert seen["where"] == url
                assert list(running.dashboard.followers) == ["two"]  # nothing is followed for it
                async with group_of(f"{url}/three"):
                    view = await page.event("view", lambda view: "verdict" in view)
                    assert view["where"].endswith("/all/three")

    async def test_a_page_that_is_opened_later_gets_the_history(self) -> None:
        url = "memory://dashboard-history/replay"
        async with group_of(url), serving(url) as running:
            async with running.page() as page:
                sample = await page.event("sample")
            async with running.page() as page:
                history = await page.event("history")
                assert history[0]["t"] <= sample["t"]


async def finish(group: aiokcc.Group, topic: str, number: int) -> None:
    async with group.gate(topic, number) as gate:
        gate.finish()


class TestManyPages:
    async def test_fifty_pages_cost_one_watch_and_leave_nothing(self) -> None:
        url = "memory://dashboard-fifty/replay"
        store = aiokcc.open_store(url)
        async with group_of(url), serving(url) as running:
            async with running.page() as page:
                await page.event("view", lambda view: "verdict" in view)
            sessions = len(store.server.sessions)  # type: ignore[attr-defined]
            tasks = len(asyncio.all_tasks())
            async with contextlib.AsyncExitStack() as stack:
                pages = [await stack.enter_async_context(running.page()) for _ in range(50)]
                await asyncio.gather(*(page.event("view") for page in pages))
                assert running.dashboard.followers[""].feed.channel.pages == 50
                assert len(store.server.sessions) == sessions  # type: ignore[attr-defined]
            async with asyncio.timeout(10):
                channel = running.dashboard.followers[""].feed.channel
                while channel.pages or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110 - the server notices by itself
                    await asyncio.sleep(0.01)
            assert running.dashboard.followers[""].users == 0


class TestControl:
    async def test_a_hold_holds(self) -> None:
        url = "memory://dashboard-hold/replay"
        async with group_of(url) as group, serving(url, allow_control=True) as running, running.page() as page:
            token = (await page.event("hello"))["control"]
            answer = await order(running, token, verb="hold")
            assert (answer.status_code, answer.json()["done"]) == (
                200,
                "Held: the limit stays where it is. The period was 1m.",
            )
            await page.event("view", lambda view: view.get("state") == "held")
            assert (await group.status()).state == "held"
            assert (await order(running, token, verb="period", period="5m")).status_code == 200
            await page.event("view", lambda view: view.get("state") == "running")

    @pytest.mark.parametrize(
        ("sent", "status", "words"),
        [
            ({"verb": "stop"}, 409, "there is no verb 'stop'"),
            ({"verb": "period"}, 409, "period needs a period"),
            ({"verb": "period", "period": "-3"}, 409, "the period"),
            ({"verb": "isolate", "member": "one"}, 409, "is not managed"),
            ({"verb": "isolate", "member": 7}, 409, "isolate needs a member"),
        ],
    )
    async def test_an_order_that_makes_no_sense_is_refused(self, sent: dict[str, Any], status: int, words: str) -> None:
        url = "memory://dashboard-nonsense/replay"
        async with group_of(url), serving(url, allow_control=True) as running, running.page() as page:
            token = (await page.event("hello"))["control"]
            answer = await order(running, token, **sent)
            assert answer.status_code == status
            assert words in answer.json()["error"]

    async def test_another_site_cannot_give_orders(self) -> None:
        url = "memory://dashboard-cross/replay"
        async with group_of(url) as group, serving(url, allow_control=True) as running:
            await asyncio.sleep(0)
            assert (await order(running, "", verb="hold")).status_code == 403
            assert (await order(running, "guessed", verb="hold")).status_code == 403
            async with running.page() as page:
                token = (await page.event("hello"))["control"]
            forged = {"x-aiokcc-control": token, "origin": "http://evil.example"}
            for origin in (
                "http://evil.example",
                "null",
                "http://127.0.0.1:1",
                str(running.client.base_url) + ".evil.example",
            ):
                forged["origin"] = origin
                answer = await running.client.post("/control", json={"verb": "hold"}, headers=forged)
                assert (answer.status_code, answer.json()["error"]) == (403, "the request comes from another site")
            asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
            preflight = await running.client.options("/control", headers=asked)
            assert not [name for name in preflight.headers if name.startswith("access-control")]
            for method in ("GET", "PUT", "DELETE"):  # nothing but a POST changes anything
                answer = await running.client.request(method, "/control?verb=hold", headers={"x-aiokcc-control": token})
                assert answer.status_code == 405
            rebound = await running.client.get("/", headers={"host": "evil.example:8642"})
            assert rebound.status_code == 421
            assert (await group.status()).state == "running"

    async def test_a_dashboard_only_shows_unless_control_is_allowed(self) -> None:
        url = "memory://dashboard-readonly/replay"
        async with group_of(url), serving(url) as running, running.page() as page:
            assert (await page.event("hello"))["control"] is None
            answer = await order(running, "", verb="hold")
            assert answer.status_code == 403
            assert "--allow-control" in answer.json()["error"]

    async def test_a_body_that_is_not_an_order_is_refused(self) -> None:
        url = "memory://dashboard-body/replay"
        async with group_of(url), serving(url, allow_control=True) as running, running.page() as page:
            headers = {"x-aiokcc-control": (await page.event("hello"))["control"]}
            for body in (b"", b"[1]", b"{", b"[" * 9_000, b"x" * 100_000):
                assert (await running.client.post("/control", content=body, headers=headers)).status_code == 400


class TestMetrics:
    async def test_one_scrape_has_the_whole_group(self) -> None:
        url = "memory://dashboard-metrics/replay"
        async with group_of(url), serving(url) as running:
            answer = await running.client.get("/metrics")
            assert answer.status_code == 200
            values = {
                sample.name: sample.value
                for family in text_string_to_metric_families(answer.text)
                for sample in family.samples
                if sample.labels["group"] == "replay"
            }
            assert values["aiokcc_members"] == 1
            assert values["aiokcc_partitions"] == 3
            assert values["aiokcc_blocking"] == 3
            assert values["aiokcc_stuck"] == 0
            assert "aiokcc_limit_waiting_seconds" in values

    async def test_a_group_below_a_prefix_has_the_name_that_its_members_give_it(self) -> None:
        """Otherwise the values of the dashboard and of the processes are of two groups."""
        url = "memory://dashboard-below/all"
        async with group_of(f"{url}/one"), serving(url) as running:
            async with running.page("/overview") as page:
                await page.event("overview", lambda seen: seen["table"]["rows"])
            answer = await running.client.get("/metrics?group=one")
            scraped = {
                sample.labels["group"]
                for family in text_string_to_metric_families(answer.text)
                for sample in family.samples
            }
            told = {observed.attributes["group"] for observed in collect() if observed.attributes["member"] == "one"}
            assert scraped == told == {"all/one"}
            for path in ("/metrics", "/healthz"):
                answer = await running.client.get(path)
                assert answer.status_code == 404
                assert f"{path}?group=one" in answer.text

    async def test_health_is_503_once_the_group_is_stuck(self) -> None:
        url = "memory://dashboard-healthz/replay"
        async with group_of(url), serving(url, stuck_after=0.0) as running:
            stuck = await running.client.get("/healthz")
            assert stuck.status_code == 503
            assert stuck.json()["stuck"]
            assert "orders.0" in stuck.json()["blocking"]
        async with group_of(url), serving(url) as running:
            good = await running.client.get("/healthz")
            assert (good.status_code, good.json()["stuck"]) == (200, False)

    async def test_a_root_without_a_group_is_not_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aiokcc.dashboard.app._FIRST_STATUS_SECONDS", 0.1)
        async with serving("memory://dashboard-nothing/replay") as running:
            for path in ("/metrics", "/healthz", "/metrics?group=none"):
                assert (await running.client.get(path)).status_code == 404


async def order(running: Running, token: str, **sent: Any) -> httpx.Response:
    return await running.client.post("/control", json=sent, headers={"x-aiokcc-control": token})


class TestToken:
    async def test_no_more_of_a_body_is_kept_than_is_allowed(self) -> None:
        """Anybody who reaches the server may send one to the login."""
        taken = 0

        async def receive() -> dict[str, Any]:
            nonlocal taken
            taken += 1
            return {"type": "http.request", "body": b"x" * 6_000, "more_body": taken < 1_000}

        assert await _read(Request({"type": "http", "method": "POST", "headers": []}, receive)) == b""
        assert taken == 2

    async def test_a_visitor_needs_the_token(self) -> None:
        url = "memory://dashboard-token/replay"
        async with group_of(url), serving(url, token=TOKEN) as running:
            client = running.client
            assert (await client.get("/")).headers["location"] == "/login"
            for path in ("/events", "/overview", "/control", "/metrics", "/healthz"):
                assert (await client.get(path)).status_code == 401
            assert (await client.get("/events", headers={"authorization": "Bearer wrong"})).status_code == 401
            assert (await client.post("/login", data={"token": "wrong"})).headers["location"] == "/login?wrong"
            known = await client.get("/", headers={"authorization": f"Bearer {TOKEN}"})
            assert known.status_code == 200
            entered = await client.post("/login", data={"token": TOKEN})
            assert entered.headers["location"] == "/"
            assert "HttpOnly" in entered.headers["set-cookie"]
            assert "SameSite=strict" in entered.headers["set-cookie"]
            assert (await client.get("/")).status_code == 200  # the client keeps the cookie

    async def test_two_dashboards_of_a_machine_do_not_log_each_other_out(self) -> None:
        """Browsers send a cookie to all ports of a host."""
        other = "f0f0f0f0f0f0f0f0f0"
        async with (
            serving("memory://dashboard-a/replay", token=TOKEN) as one,
            serving("memory://dashboard-b/replay", token=other) as two,
        ):
            for running, token in ((one, TOKEN), (two, other)):
                await one.client.post(running.client.base_url.join("/login"), data={"token": token})
            for running in (one, two):
                assert (await one.client.get(running.client.base_url.join("/overview-none"))).status_code == 404

    async def test_a_wrong_token_is_said_to_be_wrong(self) -> None:
        async with serving("memory://dashboard-wrong/replay", token=TOKEN) as running:
            login = await running.client.get("/login")
            assert login.status_code == 200  # a browser writes any other to its console as an error
            assert "not the token" not in login.text
            wrong = await running.client.post("/login", data={"token": "wrong"}, follow_redirects=True)
            assert "That is not the token." in wrong.text

    async def test_a_program_with_the_token_passes_whatever_its_cookie_is(self) -> None:
        async with serving("memory://dashboard-cookie/replay", token=TOKEN) as running:
            headers = {"cookie": f"{_cookie(TOKEN)}=of-yesterday", "authorization": f"Bearer {TOKEN}"}
            assert (await running.client.get("/", headers=headers)).status_code == 200

    @pytest.mark.parametrize("host", ["a/static/x?", "a/login?", "a/static/#", "127.0.0.1/static/", "a@b/static/?x="])
    async def test_the_name_of_the_host_opens_nothing(self, host: str) -> None:
        """A path that needs no token, smuggled into the Host header."""
        async with serving("memory://dashboard-host/replay", token=TOKEN) as running:
            port = running.client.base_url.port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for path in ("/overview", "/events", "/metrics"):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert head.split()[1] in {b"401", b"400"}
                if head.split()[1] == b"400":  # the server has closed the connection
                    break
                length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
                await reader.readexactly(length)
            writer.close()

    async def test_nothing_comes_from_elsewhere(self) -> None:
        async with serving("memory://dashboard-headers/replay") as running:
            page = await running.client.get("/")
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "http" not in page.text.replace("http-equiv", "")


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:8642", ("127.0.0.1", 8642)),
            ("[::1]:80", ("::1", 80)),
            ("8642", ("127.0.0.1", 8642)),
            (":8642", ("0.0.0.0", 8642)),
            ("localhost:0", ("localhost", 0)),
        ],
    )
    def test_an_address_has_a_host_and_a_port(self, text: str, address: tuple[str, int]) -> None:
        assert listen_address(text) == address

    @pytest.mark.parametrize("text", ["", "localhost", "localhost:http", "127.0.0.1:99999", "127.0.0.1:"])
    def test_another_text_is_refused(self, text: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match="write host:port"):
            listen_address(text)

    def test_a_port_that_is_taken_is_named(self) -> None:
        with bind("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(UsageError, match=f"127.0.0.1:{port} is taken by another program"):
                bind("127.0.0.1", port)

    def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(UsageError, match="cannot listen on 192.0.2.1:0"):
            bind("192.0.2.1", 0)

    def test_a_name_that_nobody_knows_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def look_up(*_: Any, **__: Any) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "create_server", look_up)
        with pytest.raises(UsageError, match="cannot listen on no.such.host:1: Name or service not known"):
            bind("no.such.host", 1)

    @pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "machine.example", "::"])
    def test_other_machines_need_a_token(self, host: str) -> None:
        with pytest.raises(UsageError, match="give --token"):
            check_token(host, None)
        check_token(host, TOKEN)

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
    def test_this_machine_needs_none(self, host: str) -> None:
        check_token(host, None)

    @pytest.mark.parametrize("token", ["", "short", "with spaces in a long text"])
    def test_a_token_that_can_be_guessed_is_refused(self, token: str) -> None:
        with pytest.raises(UsageError, match="openssl rand -hex 16"):
            check_token("0.0.0.0", token)
