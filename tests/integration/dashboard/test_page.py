"""The page of the dashboard in a real browser, with real services."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

import aiokcc
from aiokcc import local
from tests import kafka_topics
from tests.integration.cli.commands import MINUTE, group_of, line_with, run, started, waiting
from tests.integration.dashboard.browser import Browser, browser

pytestmark = pytest.mark.timeout(120)

IN_2026 = 1_767_225_600_000
VERDICT = "document.getElementById('state').innerText.toLowerCase()"
LIMIT = "document.querySelector('#chart path.limit')?.getAttribute('d') ?? ''"


@pytest.fixture
async def window(tmp_path: Path) -> AsyncIterator[Browser]:
    """Give a browser window; a test that uses it fails if the page has written an error to the console."""
    async with browser(tmp_path / "profile") as opened:
        yield opened
        # The server ends before the window does, and the page tries to reach it until then.
        assert [error for error in opened.errors() if "ERR_CONNECTION_REFUSED" not in error] == []


@asynccontextmanager
async def dashboard(store: str, *options: str, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Run the command, and give the address of its page."""
    async with started("dashboard", store, "--listen", listen, *options) as process:
        yield (await line_with(process, "http://")).split()[0]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 128 + signal.SIGTERM


async def test_the_stairs_grow_while_a_replay_runs(zk_root: str, kafka: local.Kafka, window: Browser) -> None:
    topic = await kafka_topics.create_fresh(kafka.bootstrap, "orders", partitions=3)
    rows = [kafka_topics.Row(n % 3, IN_2026 + n * 1000) for n in range(3000)]
    await kafka_topics.write(kafka.bootstrap, topic, rows)

    seen = asyncio.Event()

    async def handle(record: object) -> None:
        if not seen.is_set():
            await asyncio.sleep(0.03)

    async with dashboard(zk_root) as address:
        await window.open(address)
        await window.until("document.getElementById('missing').innerText.startsWith('There is no group')")
        async with aiokcc.replay(
            topic, bootstrap_servers=kafka.bootstrap, store=zk_root, period="20s", end="now"
        ) as replay:
            running = asyncio.ensure_future(replay.run(handle))
            await window.until(f"({LIMIT}).split('L').length > 3")
            first = await window.run("return document.querySelectorAll('#chart path[data-partition]').length")
            begun = await window.run(f"return ({LIMIT}).split('L').length")
            await window.until(f"({LIMIT}).split('L').length > given[0] + 3", begun)
            seen.set()
            assert first == 3
            axis = await window.run(
                "return [...document.querySelectorAll('#chart text')].map((text) => text.textContent)"
            )
            assert len(axis) < 40, "nothing tells where the first period began, and the axis begins in 1970"
            assert "records/s" in await window.text("#tiles")
            await running
        await window.until(f"{VERDICT} === 'ended'")
        assert (await window.text("#why")).startswith("The run has ended")


async def test_a_blocked_partition_appears_by_name_within_a_second(zk_root: str, window: Browser) -> None:
    async with group_of(zk_root) as group, dashboard(zk_root) as address:
        await window.open(address)
        async with waiting(group.orders, MINUTE):  # payments.0 has records before the limit, and does not report
            await group.slow()
            known = time.monotonic()
            await window.until(
                "document.getElementById('why').innerText.includes('payments.0 on beta')"
                " && document.getElementById('blocking').innerText.includes('payments.0')"
                " && [...document.querySelectorAll('#chart text.blocked')].some((label) => label.textContent === 'payments.0')"
            )
            assert time.monotonic() - known < 1.0
            # Once it has arrived, the table stays for some seconds, in grey: it says who was slow, and the page does not jump.
            async with waiting(group.payments, MINUTE):
                await window.until(
                    "document.querySelector('#blocking.over:not([hidden])')?.innerText.includes('payments.0')"
                    " && document.getElementById('blocking').innerText.includes('a moment ago')"
                )


async def test_a_hold_that_is_pressed_on_the_page_holds(zk_root: str, window: Browser) -> None:
    async with group_of(zk_root) as group, dashboard(zk_root, "--allow-control") as address:
        await window.open(address)
        await window.until("!document.getElementById('control').hidden && document.getElementById('why').innerText")
        await window.click("[data-verb=hold]")
        await window.click("#confirm button[value=no]")  # changed their mind
        assert (await group.alpha.status()).state == "running"
        await window.click("[data-verb=hold]")
        await window.click("#yes")
        await window.until("document.getElementById('answer').innerText.startsWith('Held')")
        await window.until(f"{VERDICT} === 'held'")
        assert (await group.alpha.status()).state == "held"
        await window.run("document.querySelector('#change-period input').value = '5m'")
        await window.click("#change-period button")
        await window.click("#yes")
        await window.until("document.getElementById('answer').innerText.includes('5m')")
        assert (await group.alpha.status()).period == 5 * MINUTE


async def test_the_page_connects_again_after_the_server_was_restarted(zk_root: str, window: Browser) -> None:
    async with group_of(zk_root):
        async with dashboard(zk_root) as address:
            await window.open(address)
            await window.until("document.getElementById('connection').innerText === 'live'")
        await window.until("document.getElementById('connection').innerText.includes('trying again')")
        async with dashboard(zk_root, "--allow-control", listen=address.removeprefix("http://")):
            await window.until("document.getElementById('connection').innerText === 'live'")
            await window.until("!document.getElementById('control').hidden")


async def test_keys_and_the_dark_mode_work(zk_root: str, window: Browser) -> None:
    async with group_of(zk_root) as group, dashboard(zk_root, "--allow-control") as address:
        await window.open(address)
        await window.until("document.querySelector('#tables td') && document.querySelector('#chart path.limit')")
        # The hold, by keys alone: the dialog opens on Cancel, so that Enter pressed twice changes nothing.
        await window.run("document.querySelector('[data-verb=hold]').focus()")
        await window.press(Keys.ENTER)
        await window.until("document.activeElement.innerText === 'Cancel'")
        await window.press(Keys.TAB, Keys.ENTER)
        await window.until("document.getElementById('answer').innerText.startsWith('Held')")
        assert (await group.alpha.status()).state == "held"
        # A screen reader says the new state, and not every second for how long it has lasted.
        assert await window.run("return document.getElementById('state').ariaLive") == "polite"
        assert await window.run("return document.getElementById('why').closest('[aria-live]')") is None
        # The chart, by keys.
        await window.run("document.getElementById('chart').focus()")
        await window.press(Keys.ARROW_LEFT)
        await window.until("document.querySelector('.tip').innerText.includes('limit')")
        await window.press(Keys.ESCAPE)
        await window.until("document.querySelector('.tip').hidden")
        # A table, sorted by keys; the order stays when the rows change.
        first = "document.querySelector('[data-name=Partitions] tbody td').innerText"
        await window.run("document.querySelector('[data-name=Partitions] th button').focus()")
        await window.press(Keys.ENTER)
        await window.until(f"{first} === 'orders.0'")
        await window.press(Keys.ENTER)
        await window.until(f"{first} === 'payments.0'")
        ground = "return getComputedStyle(document.body).backgroundColor"
        light = await window.run(ground)
        await window.dark(True)
        assert light == "rgb(246, 247, 249)"
        assert await window.run(ground) == "rgb(16, 21, 27)"


async def test_groups_below_a_prefix_are_links(zk_root: str, window: Browser) -> None:
    async with group_of(f"{zk_root}/one"), group_of(f"{zk_root}/two"), dashboard(zk_root) as address:
        await window.open(address)
        await window.until("document.querySelectorAll('#overview tbody tr').length === 2")
        await window.run(
            "[...document.querySelectorAll('#overview a')].find((link) => link.innerText === 'two').click()"
        )
        await window.until(
            "document.getElementById('where').innerText.endsWith('/two') && document.getElementById('why').innerText"
        )
        await window.run("history.back()")
        await window.until("!document.getElementById('overview').hidden")


async def test_a_group_that_moves_is_not_called_blocked_and_groups_do_not_mix(zk_root: str, window: Browser) -> None:
    """The page goes from one group to another, which moves quickly and has other topics."""
    stop = asyncio.Event()

    async def move(group: aiokcc.Group) -> None:
        async with group.gate("clicks", 0) as gate:
            for step in range(100_000):
                await gate.wait_until(step * MINUTE, step)
                if stop.is_set():
                    return
                await asyncio.sleep(0.05)

    quick = aiokcc.connect(f"{zk_root}/quick", topics={"clicks": 1}, start=0, period="1m", member="gamma")
    async with group_of(f"{zk_root}/one"), quick as group, dashboard(zk_root) as address:
        moving = asyncio.ensure_future(move(group))
        await window.open(f"{address}/#one")
        await window.until("document.getElementById('legend').innerText.includes('orders')")
        seen = await window.run(
            """window.seen = new Set();
            new MutationObserver(() => seen.add(document.getElementById('state').innerText.toLowerCase()))
                .observe(document.getElementById('state'), { childList: true });
            location.hash = '#quick'; return true"""
        )
        assert seen
        await window.until("document.getElementById('where').innerText.endsWith('/quick')")
        await window.run("window.seen.clear()")
        await window.until("document.getElementById('legend').innerText === 'clicks'")
        begun = await window.run(f"return ({LIMIT}).split('L').length")
        await window.until(f"({LIMIT}).split('L').length > given[0] + 40", begun)
        assert await window.run(f"return {VERDICT}") == "moving"
        assert await window.run("return [...window.seen].filter((word) => word !== 'moving')") == []
        assert await window.run("return document.querySelectorAll('#chart .blocked').length") == 0
        stop.set()
        await moving


@pytest.mark.parametrize(("width", "height"), [(2560, 1440), (3840, 2160)])
async def test_a_wall_shows_everything_in_letters_that_can_be_read(
    zk_root: str, window: Browser, width: int, height: int
) -> None:
    async with group_of(zk_root) as group, dashboard(zk_root) as address:
        await asyncio.to_thread(window.driver.set_window_size, width, height)
        await window.open(address)
        async with waiting(group.orders, MINUTE):
            await group.slow()
            await window.until("document.querySelector('#chart text.blocked')")
            outside = """const edge = document.getElementById('chart').getBoundingClientRect();
                return [...document.querySelectorAll('#chart text')].filter((text) => {
                    const box = text.getBoundingClientRect();
                    return box.left < edge.left || box.right > edge.right || box.bottom > edge.bottom;
                }).map((text) => text.textContent)"""
            assert await window.run(outside) == []
            letters = (
                "return parseFloat(getComputedStyle(document.querySelector('#chart text')).fontSize) / screen.height"
            )
            assert await window.run(letters.replace("screen.height", str(height))) > 0.012


class TestBadInput:
    async def test_a_port_that_is_taken(self, zk_root: str) -> None:
        async with dashboard(zk_root) as address:
            ended = await run("dashboard", zk_root, "--listen", address.removeprefix("http://"))
        assert ended.code == 1
        assert "is taken by another program; give another with --listen" in ended.err

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("--listen", "0.0.0.0:0"), "give --token env:NAME"),
            (("--listen", "0.0.0.0:0", "--token", "env:HOME"), "openssl rand -hex 16"),
            (("--token", "hunter2hunter2hunter2"), "--token env:NAME or --token file:PATH"),
            (("--listen", "here"), "write host:port"),
            (("--token", "env:NOT_SET_ANYWHERE"), "the environment variable NOT_SET_ANYWHERE is not set"),
            (("--keep", "long"), "--keep"),
        ],
    )
    async def test_options_that_make_no_sense(self, words: tuple[str, ...], says: str) -> None:
        ended = await run("dashboard", "zk://127.0.0.1:1/replay", *words)
        assert ended.code == 2
        assert says in ended.err

    async def test_a_store_that_does_not_answer(self) -> None:
        ended = await run("dashboard", "zk://127.0.0.1:1/replay", "--listen", "127.0.0.1:0", "--timeout", "500ms")
        assert ended.code == 1
        assert "Is it running there?" in ended.err
