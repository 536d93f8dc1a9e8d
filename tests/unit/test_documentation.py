"""The README and the pages under docs/: every link has a target, and the code in them is Python."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import aiokcc

ROOT = Path(aiokcc.__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = page if not file else (page.parent / file).resolve()
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](#one-two) [b](#three) [c](none.md) [d](page.md#one-two) [e](https://example.org/x)\n"
    )
    assert broken_links(page) == ["#three", "none.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_compiles(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(block.replace("…", "..."), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {
        (index.parent / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)\s]+)\)", index.read_text())
    }
    assert [page for page in (ROOT / "docs").glob("**/*.md") if page != index and page not in listed] == []


def test_paths_of_pages_in_the_code_exist() -> None:
    sources = [
        path for folder in ("aiokcc", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    named = {name for path in sources for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("function", "page", "internal"),
    [
        (aiokcc.connect, "gate.md", {"offsets", "grows", "newer"}),  # for aiokcc.replay and aiokcc.spark
        (aiokcc.replay, "replay.md", set()),
        (aiokcc.spark.replay, "spark.md", set()),
    ],
)
def test_every_argument_is_in_the_reference(function: Callable[..., object], page: str, internal: set[str]) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [name for name in names if f"`{name}=" not in text and name not in internal] == []
