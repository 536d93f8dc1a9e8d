"""``aiokcc dashboard``: serves a page that shows a group live."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from aiokcc.cli.argument_types import listen_address, seconds, setting
from aiokcc.cli.verb import STUCK_AFTER, Verb, argument, open_existing, operator_name
from aiokcc.core import paths
from aiokcc.core.formatting import count
from aiokcc.core.masking import mask_url
from aiokcc.credentials import is_reference, remember_secret
from aiokcc.errors import NoAuthError, NoGroupError, UsageError
from aiokcc.runtime.children import list_children
from aiokcc.stores.port import Session, Store

__all__ = ["VERB"]

_TOKEN: Final = "AIOKCC_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
_MISSING: Final = "the dashboard needs starlette and uvicorn, which are not installed: pip install 'aiokcc[dashboard]'"


def _token(text: str) -> str:
    """Return the token that ``env:NAME`` or ``file:PATH`` names. Raises ArgumentTypeError for any other text."""
    if not is_reference(text):  # a command line can be read by everybody on the machine
        raise argparse.ArgumentTypeError("it says where the token is found: --token env:NAME or --token file:PATH")
    return str(setting(f"token={text}")[1])


def _check(options: argparse.Namespace) -> None:
    options.token = options.token or os.environ.get(_TOKEN) or None
    remember_secret(options.token)
    _server().check_token(options.listen[0], options.token)


def _server() -> Any:
    """Return the module of the server, which needs the extra. Raises UsageError if that is not installed."""
    try:
        from aiokcc.dashboard import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn", "prometheus_client"}:
            raise
        raise UsageError(_MISSING) from None
    return server


async def _run(options: argparse.Namespace) -> int:
    from aiokcc.dashboard.app import Dashboard, DashboardOptions

    server = _server()
    store = open_existing(options)
    try:
        async with store.session(connect_timeout=options.timeout) as session:
            found = await _describe(store, session)
    except NoGroupError:  # the topic of a store on Kafka does not exist yet
        found = f"There is no group under {mask_url(store.url)} yet; the page waits for one:"
    dashboard = Dashboard(
        store,
        DashboardOptions(
            keep=options.keep,
            stuck_after=options.stuck_after,
            allow_control=options.allow_control,
            operator=operator_name(),
            token=options.token,
        ),
    )
    listening = server.bind(*options.listen)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(found, flush=True)

    def ready() -> None:
        print(f"http://{shown}:{port}   Ctrl-C ends this", flush=True)
        if options.allow_control:
            print("Whoever can open the page can hold, release and change the group (--allow-control).", flush=True)

    await server.serve(dashboard, listening, ready)
    return 0


async def _describe(store: Store, session: Session) -> str:
    """Return what there is under the root at present."""
    where = mask_url(store.url)
    if await session.find(paths.COORDINATOR) is not None:
        return f"The dashboard of {where}:"
    names = await list_children(session, "")
    groups = [name for name in names if await _is_group(session, name)]
    if groups:
        return f"The dashboard of the {count(len(groups), 'group')} under {where}:"
    return f"There is no group under {where} yet, nor under a root below it; the page waits for one:"


async def _is_group(session: Session, name: str) -> bool:
    try:
        return await session.find(f"{name}/{paths.COORDINATOR}") is not None
    except NoAuthError:  # it is there, and may not be read
        return True


VERB: Final = Verb(
    name="dashboard",
    brief="serve a page that shows a group live",
    usage="[URL] [--listen HOST:PORT] [--allow-control]",
    arguments=(
        argument(
            "--listen",
            type=listen_address,
            default="127.0.0.1:8642",
            metavar="HOST:PORT",
            help="where to serve it; default: 127.0.0.1:8642, which only this machine can reach",
        ),
        argument(
            "--keep",
            type=seconds("--keep"),
            default=600.0,
            metavar="TIME",
            help="how much history a page that is opened later gets; default: 10m",
        ),
        argument("--allow-control", action="store_true", help="let the page hold, release and change the group"),
        argument(
            "--token",
            type=_token,
            metavar="TOKEN",
            help=f"where the text is that visitors have to know: env:NAME or file:PATH; default: ${_TOKEN}",
        ),
        STUCK_AFTER,
    ),
    check=_check,
    run=_run,
    description="""\
Serve a page that shows a group live: how far each partition is in event time,
who blocks and why, members, rates and the time left. If the root is not a group
but others are directly below it, the page lists those.
""",
    epilog="""\
examples:
  aiokcc dashboard zk://127.0.0.1:2181/replay
  aiokcc dashboard zk://127.0.0.1:2181/aiokcc     all groups below /aiokcc
  aiokcc dashboard --allow-control                with hold, period, release,
                                                  isolate and rejoin
  aiokcc dashboard --listen 0.0.0.0:8642 --token env:DASHBOARD_TOKEN

  Other machines can only connect with --token. It is plain HTTP, which others
  in the network can read: put a proxy with TLS before it.
""",
)
