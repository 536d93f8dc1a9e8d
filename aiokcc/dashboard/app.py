"""The web application: the page, its streams of events, and the operator's verbs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.abc
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiokcc.core.masking import mask_url
from aiokcc.credentials import hide_secrets, remember_secret
from aiokcc.dashboard.channel import Channel, encode_event
from aiokcc.dashboard.control import control
from aiokcc.dashboard.feed import GroupFeed
from aiokcc.dashboard.overview import Overview
from aiokcc.errors import AiokccError, StoreError, UsageError
from aiokcc.stores.port import Store
from aiokcc.views.exposition import CONTENT_TYPE, group_metrics, prometheus_text

__all__ = ["Dashboard", "DashboardOptions", "is_loopback"]

log = logging.getLogger("aiokcc.dashboard")

_STATIC: Final = Path(__file__).parent / "static"
_LINGER_SECONDS: Final = 60.0
"""A group below a prefix is followed for this long after its last page was closed."""
_FIRST_STATUS_SECONDS: Final = 5.0
_MOST_BYTES: Final = 10_000
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def _cookie(token: str) -> str:
    """Return the name of the cookie. It depends on the token: browsers send a cookie to all ports of a host, so the dashboards
    of a machine must not share one."""
    return f"aiokcc_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """The choices of whoever starts the dashboard."""

    keep: float = 600.0
    """The seconds of history that the server keeps, for pages that are opened later."""
    stuck_after: float = 30.0
    allow_control: bool = False
    operator: str = "dashboard"
    """The name that is stored with what an operator writes."""
    token: str | None = field(default=None, repr=False)
    """The token that a visitor has to know; None if everybody on this machine may look."""


class _Follower:
    """A feed, the task that runs it, and the number of those who use it."""

    def __init__(self, feed: GroupFeed, scope: anyio.CancelScope) -> None:
        self.feed, self.scope = feed, scope
        self.users = 0
        self.ending: asyncio.TimerHandle | None = None


class Dashboard:
    """Owns the feeds and serves them. ``app`` is the ASGI application; the feeds run while its lifespan does."""

    def __init__(self, store: Store, options: DashboardOptions) -> None:
        self._store, self._options = store, options
        self._control_token = secrets.token_urlsafe(32)
        remember_secret(self._control_token)
        self.overview = Overview(store, on_group=self._follow_root)
        self.followers: dict[str, _Follower] = {}
        """The feeds by the names of their groups; the root's own name is empty."""
        self._tasks: anyio.abc.TaskGroup | None = None
        routes = [
            Route("/", self._page),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/overview", self._follow_overview),
            Route("/events", self._follow_group),
            Route("/control", self._control, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
        guard = Middleware(_Guard, token=options.token)
        self.app = Starlette(routes=routes, middleware=[guard], lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self.overview.run)
            yield
            self.close()
            self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        """End the streams of all pages, so that the server can stop."""
        for channel in self._channels():
            channel.close()

    def _channels(self) -> Iterable[Channel]:
        yield self.overview.channel
        for follower in self.followers.values():
            yield follower.feed.channel

    def _follow_root(self) -> None:
        """Follow the root from now on, so that pages that are opened later get its history."""
        if "" not in self.followers:
            self.followers[""] = self._start("")

    # -- feeds ----------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _following(self, name: str) -> Iterator[GroupFeed]:
        """Yield the feed of a group, which is started if it does not run."""
        follower = self.followers.get(name)
        if follower is None:
            follower = self.followers[name] = self._start(name)
        if follower.ending is not None:
            follower.ending.cancel()
            follower.ending = None
        follower.users += 1
        try:
            yield follower.feed
        finally:
            follower.users -= 1
            if name and not follower.users:
                loop = asyncio.get_running_loop()
                follower.ending = loop.call_later(_LINGER_SECONDS, self._end, name, follower)

    def _store_of(self, name: str) -> Store:
        """Return the store of a group directly below the root; of the root itself, if the name is empty."""
        return self._store.at(f"{self._store.root}/{name}") if name else self._store

    def _start(self, name: str) -> _Follower:
        assert self._tasks is not None
        feed = GroupFeed(self._store_of(name), keep=self._options.keep, stuck_after=self._options.stuck_after)
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await feed.run()

        self._tasks.start_soon(run)
        return _Follower(feed, scope)

    def _end(self, name: str, follower: _Follower) -> None:
        if not follower.users and self.followers.get(name) is follower:
            del self.followers[name]
            follower.scope.cancel()

    def _group(self, request: HTTPConnection) -> str:
        """Return the name of the group that is asked for. Raises UsageError if there is none."""
        name = request.query_params.get("group", "")
        if name and name not in self.overview.groups:
            raise UsageError(f"there is no group {name!r} under {self._store.describe('')}")
        return name

    # -- requests -------------------------------------------------------------------------------------------------------------

    async def _page(self, _: Request) -> Response:
        return Response((_STATIC / "index.html").read_bytes(), media_type="text/html")

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            page = (_STATIC / "login.html").read_text()
            if "wrong" in request.query_params:
                page = page.replace("<!-- wrong -->", '<p role="alert">That is not the token. Try again.</p>')
            return Response(page, media_type="text/html")
        body = (await _read(request)).decode(errors="replace")
        given = body.partition("token=")[2].partition("&")[0]
        if self._options.token is None or not hmac.compare_digest(given.encode(), self._options.token.encode()):
            return RedirectResponse("/login?wrong", status_code=303)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(_cookie(given), given, httponly=True, samesite="strict")
        return response

    async def _follow_overview(self, _: Request) -> Response:
        return _stream(self.overview.channel.read(self._hello))

    def _hello(self) -> Iterable[bytes]:
        allowed = self._options.allow_control
        yield encode_event("hello", {"control": self._control_token if allowed else None})

    async def _follow_group(self, request: Request) -> Response:
        name = request.query_params.get("group", "")
        try:
            since = int(request.query_params.get("since", "0"))
        except ValueError:
            return PlainTextResponse("since is milliseconds since the epoch", status_code=400)

        async def events() -> AsyncIterator[bytes]:
            if name:
                async with contextlib.aclosing(self._until_there(name)) as waiting:
                    async for part in waiting:
                        yield part
                if name not in self.overview.groups:
                    return
            with self._following(name) as feed:
                stream = feed.channel.read(lambda: [*self._hello(), *feed.begin(since)])
                async with contextlib.aclosing(stream):
                    async for part in stream:
                        yield part

        return _stream(events())

    async def _until_there(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield what a page shows while no group has this name. Ends when one has, or with the server."""
        overview = self.overview
        async with contextlib.aclosing(overview.channel.read(tuple)) as changes:
            async for _ in changes:
                if name in overview.groups:
                    return
                if overview.is_known:
                    where = mask_url(overview.store.url)
                    missing = f"there is no group {name!r} under {overview.store.describe('')}"
                    yield encode_event("view", {"missing": missing, "where": where})

    async def _known(self, request: Request) -> GroupFeed:
        """Return the feed of the group that is asked for, once it has a status. Raises UsageError if there is none."""
        name = self._group(request)
        if not name and self.overview.groups:
            where, first = self._store.describe(""), self.overview.groups[0]
            raise UsageError(
                f"{where} is not a group; ask for one below it, such as {request.scope['path']}?group={first}"
            )
        with self._following(name) as feed:
            with anyio.move_on_after(_FIRST_STATUS_SECONDS):
                await feed.known()
            if feed.status is None:
                raise UsageError(f"there is no group under {feed.store.describe('')}, or the store does not answer")
            return feed

    async def _metrics(self, request: Request) -> Response:
        try:
            feed = await self._known(request)
        except UsageError as error:
            return PlainTextResponse(str(error), status_code=404)
        # The group has the name that its members give it: the whole path, also below a prefix.
        text = prometheus_text(group_metrics(feed.present(), feed.health(), feed.store.root.strip("/")))
        return Response(text, media_type=CONTENT_TYPE)

    async def _healthz(self, request: Request) -> Response:
        try:
            feed = await self._known(request)
        except UsageError as error:
            return _refusal(404, str(error))
        health, status = feed.health(), feed.present()
        assert health is not None
        assert status is not None
        facts = {
            "verdict": "away" if feed.away else health.kind.value,
            "stuck": health.stuck,
            "why": "The store does not answer." if feed.away else health.text,
            "limit": status.limit,
            "waiting_seconds": round(status.waiting_seconds, 3),
            "blocking": [b.partition for b in status.blocking][:10],
        }
        return JSONResponse(facts, status_code=503 if health.stuck or feed.away else 200)

    async def _control(self, request: Request) -> Response:
        if not self._options.allow_control:
            return _refusal(403, "this dashboard only shows; start it with --allow-control")
        if not _is_same_site(request):
            return _refusal(403, "the request comes from another site")
        given = request.headers.get("x-aiokcc-control", "")
        if not hmac.compare_digest(given.encode(), self._control_token.encode()):
            return _refusal(403, "the request has not the token of this page; load the page again")
        try:
            order = json.loads(await _read(request))
        except (ValueError, RecursionError):
            order = None
        if not isinstance(order, dict):
            return _refusal(400, "expected a JSON object with verb, and period or member")
        try:
            name = self._group(request)
            done = await control(self._store_of(name), order, operator=self._options.operator)
        except UsageError as error:
            return _refusal(409, str(error))
        except StoreError as error:
            return _refusal(503, hide_secrets(str(error)))
        except AiokccError as error:
            return _refusal(500, hide_secrets(str(error)))
        log.info("the page has asked for %s: %s", order["verb"], done)
        return JSONResponse({"done": done})


def _is_same_site(request: Request) -> bool:
    """Return whether the page that sent a request is ours, as far as the browser says: it names the page's origin."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


def _refusal(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _read(request: Request) -> bytes:
    """Return the body; empty if it is too long. No more of it is kept than what is allowed."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            return b""
    return body


class _Guard:
    """Adds the headers that keep other sites out, and refuses visitors without the token.

    Without a token only this machine can connect. A site that makes its own name point to this machine is then still refused,
    because its requests name that site as their host.
    """

    _OPEN: Final = ("/login", "/static/")

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                mine = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *mine]
            await send(message)

        refusal = self._refuse(HTTPConnection(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _refuse(self, connection: HTTPConnection) -> Response | None:
        """Return the answer for a visitor who may not pass; None for one who may."""
        if self._token is None:
            host = connection.headers.get("host", "")
            name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
            return None if is_loopback(name) else _refusal(421, f"{name!r} is not a name of this machine")
        header = connection.headers.get("authorization", "").removeprefix("Bearer ")
        given = (connection.cookies.get(_cookie(self._token), ""), header)
        # Not connection.url: Starlette before 1.0 makes it of the Host that a visitor names.
        path = connection.scope["path"]
        right = any(hmac.compare_digest(each.encode(), self._token.encode()) for each in given)
        if right or path.startswith(self._OPEN):
            return None
        if path == "/":
            return RedirectResponse("/login", status_code=303)
        return _refusal(401, "the token is missing or wrong")
