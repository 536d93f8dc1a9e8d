"""A real browser without a window, for the tests of the page."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
    # It is to open our page, and to ask nobody else for anything.
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)


class Browser:
    """Drives one window. Each call runs in a thread, because the driver waits."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self.driver.get, url)

    async def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return its value."""
        return await asyncio.to_thread(self.driver.execute_script, script, *arguments)

    async def until(self, condition: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """Wait until an expression is true in the page, and return its value. ``given`` holds the arguments."""
        script = f"""
            const given = arguments, done = given[given.length - 1], limit = performance.now() + {seconds * 1000};
            (function look() {{
                const value = ({condition});
                if (value || performance.now() > limit) done(value); else setTimeout(look, 20);
            }})();
        """
        self.driver.set_script_timeout(seconds + 5)
        value = await asyncio.to_thread(self.driver.execute_async_script, script, *arguments)
        assert value, (
            f"{condition} did not become true within {seconds:g} s; the page shows:\n{await self.text('body')}"
        )
        return value

    async def text(self, selector: str) -> str:
        return str(await self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    async def press(self, *keys: str) -> None:
        """Press keys, one after another, wherever the focus is."""

        def press() -> None:
            for key in keys:
                self.driver.switch_to.active_element.send_keys(key)

        await asyncio.to_thread(press)

    async def click(self, selector: str) -> None:
        await asyncio.to_thread(lambda: self.driver.find_element("css selector", selector).click())

    async def dark(self, on: bool) -> None:
        """Let the system ask for dark pages."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await asyncio.to_thread(self.driver.execute_cdp_cmd, "Emulation.setEmulatedMedia", {"features": [feature]})

    def errors(self) -> list[str]:
        """Return what the page has written to the console as errors."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """Start a browser, and end it with the block. Fails, and says what to install, if there is none."""
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.fail("the tests of the page need a browser: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = program
    for option in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = await asyncio.to_thread(lambda: webdriver.Chrome(options=options, service=Service(driver)))
    try:
        yield Browser(running)
    finally:
        await asyncio.to_thread(running.quit)
