"""The README and the pages under docs/: every link has a target, and the code in them is Python."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import aiokcc
from aiokcc.core import paths
from tests.property.barrier_actors import RULES

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
    ("function", "page"),
    [(aiokcc.connect, "gate.md"), (aiokcc.replay, "replay.md"), (aiokcc.spark.replay, "spark.md")],
)
def test_every_argument_is_in_the_reference(function: Callable[..., object], page: str) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text()
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [name for name in names if f"`{name}=" not in text] == []


class CodeIndex:
    """The names that the package and its tests define, by file."""

    def __init__(self) -> None:
        self.by_file: dict[Path, set[str]] = {}
        self.bases: dict[str, set[str]] = {}
        self.members: dict[str, set[str]] = {}
        for folder in ("aiokcc", "tests"):
            for path in (ROOT / folder).rglob("*.py"):
                self.by_file[path] = self._read(path)
        self.all = set().union(*self.by_file.values())

    def _read(self, path: Path) -> set[str]:
        names: set[str] = set()
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.ClassDef):
                names.add(node.name)
                self.bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
                self.members.setdefault(node.name, set()).update(self._assigned(node))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                names |= self._targets(node)
        return names

    def _assigned(self, cls: ast.ClassDef) -> set[str]:
        names: set[str] = set()
        for node in ast.walk(cls):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                names |= self._targets(node)
        return names

    @staticmethod
    def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found = [leaf for target in targets for leaf in ast.walk(target)]
        return {leaf.id for leaf in found if isinstance(leaf, ast.Name)} | {
            leaf.attr for leaf in found if isinstance(leaf, ast.Attribute)
        }

    def has(self, name: str, file: Path | None) -> bool:
        """Return whether a name such as ``Gate`` or ``Gate.idle`` is defined, in this file if one is given."""
        first, _, rest = name.partition(".")
        defined = self.all if file is None else self.by_file.get(file, set())
        return first in defined and (not rest or any(rest in self.members.get(cls, ()) for cls in self._line_of(first)))

    def _line_of(self, cls: str) -> list[str]:
        """Return a class and the classes that it is derived from."""
        return [cls, *(name for base in sorted(self.bases.get(cls, ())) for name in self._line_of(base))]


NODES = {value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}


def wrong_names(text: str, code: CodeIndex) -> list[str]:
    """Return the files and names in backticks that do not exist. A name right behind a file must be defined there.

    What is no file and no name of the code is left out: commands, options, single words, and what stands in a fence.
    """
    wrong: list[str] = []
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n"):
        file: Path | None = None
        folder = ROOT
        behind = 0
        for found in re.finditer(r"`([^`\n]+)`", line):
            token, between = found[1], line[behind : found.start()]
            behind = found.end()
            if token.endswith(".py"):
                candidates = [base / token for base in (ROOT / "aiokcc", ROOT, folder, *folder.parents)]
                file = next((path for path in candidates if path.is_file()), None)
                if file is None:
                    wrong.append(token)
                else:
                    folder = file.parent
            elif re.fullmatch(r"[A-Za-z_]\w*(\.(?!toml)[A-Za-z_]\w*)?", token) and not token.startswith("aiokcc"):
                if not re.fullmatch(r"\s*\(?|, ", between):
                    file = None
                is_name = re.search(r"[A-Z_.]", token) or (file is not None and token not in NODES)
                if is_name and not code.has(token, file):
                    wrong.append(token if file is None else f"{token} in {file.relative_to(ROOT)}")
    return wrong


@pytest.fixture(scope="module")
def code() -> CodeIndex:
    return CodeIndex()


@pytest.mark.parametrize("page", ["docs/maintainers/architecture.md", "docs/explanation/protocol.md"])
def test_every_file_and_name_of_the_code_exists(page: str, code: CodeIndex) -> None:
    assert wrong_names((ROOT / page).read_text(), code) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_test_of_the_repository_exists(page: Path, code: CodeIndex) -> None:
    """In all other pages: paths from the top of the repository, and names of tests."""
    tokens = re.findall(r"`([^`\n]+)`", page.read_text())
    paths_named = {
        t.partition("::")[0]
        for t in tokens
        if re.match(r"(aiokcc|tests|benchmarks|examples|docs)/[\w./-]*(::\w+)?$", t)
    }
    tests_named = {t for t in tokens if re.fullmatch(r"test_\w+", t)}
    assert [path for path in sorted(paths_named) if not (ROOT / path).exists()] == []
    assert sorted(tests_named - code.all) == []


@pytest.mark.parametrize("package", ["core", "kafka"])
def test_the_docstring_of_a_package_lists_all_its_modules(package: str) -> None:
    folder = ROOT / "aiokcc" / package
    listed = set(re.findall(rf":mod:`~aiokcc\.{package}\.(\w+)`", (folder / "__init__.py").read_text()))
    assert listed == {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_a_wrong_file_or_name_is_found(code: CodeIndex) -> None:
    text = (
        "`runtime/gate.py` `Gate.idle`, then `runtime/gate.py` `Leader.decide` and `core/nothing.py`.\n\n"
        "`Leader.decide`, `Leader.nothing`, `LeaderTerm.read_again`; `core/sticky.py`, `weighted.py`; "
        "`core/leader.py` (`Step`, `Gate`)"
    )
    assert wrong_names(text, code) == [
        "Leader.decide in aiokcc/runtime/gate.py",
        "core/nothing.py",
        "Leader.nothing",
        "Gate in aiokcc/core/leader.py",
    ]


@pytest.mark.parametrize("folder", ["aiokcc", "tests", "benchmarks", "examples"])
def test_docstrings_are_sentences(folder: str) -> None:
    """Those of modules, classes and functions, and those below an attribute or a constant."""
    fragments = [
        f"{path.relative_to(ROOT)}: {node.value.value.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and re.match(r"(What|Where|Who|Whose|Whether|How|Which|Why)\b", node.value.value)
    ]
    assert fragments == [], "say what it does or is: 'Returns …', 'The time at which …'"


def test_every_rule_of_the_protocol_is_in_its_text_and_has_a_row_with_its_tests() -> None:
    text, _, table = (
        (ROOT / "docs" / "explanation" / "protocol.md").read_text().partition("## What breaks without each rule")
    )
    named = set(re.findall(r"\*\*\[([^\]]+)\]\*\*", text)) - {"brackets"}
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", table.partition("## Invariants")[0], re.MULTILINE
    )
    tests = {rule: (on_model, on_code) for rule, on_model, on_code in rows[2:]}
    assert tests.keys() == named
    assert named >= RULES
    for rule, (on_model, on_code) in tests.items():
        assert rule not in RULES or "`test_" in on_model, (
            f"{rule}: the model has it, and the table no test on the model"
        )
        assert "`test_" in on_code or on_code.startswith("none: "), f"{rule}: the table has no test on the code"


def test_every_write_of_the_protocol_has_its_tests() -> None:
    text = (ROOT / "docs" / "explanation" / "protocol.md").read_text()
    _, _, rest = text.partition("## Every write and its condition")
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", rest.partition("\n## ")[0], re.MULTILINE)[2:]
    assert [write for write, tests in rows if "`test_" not in tests and tests != "no condition"] == []
    named = {name for _, tests in rows for name in re.findall(r"`(test_\w+)`", tests)}
    path = ROOT / "tests" / "unit" / "runtime" / "test_conditions.py"
    conditions = {name for name in CodeIndex().by_file[path] if name.startswith("test_")}
    assert conditions <= named | set(re.findall(r"`(test_\w+)`", text)), "the table names each of them"
