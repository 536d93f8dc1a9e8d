"""The README as a package index shows it: alone, without the files beside it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord

import aiokcc

ROOT = Path(aiokcc.__file__).parent.parent


def test_the_readme_of_the_package_has_no_picture_and_no_link_that_leads_nowhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / fragment["path"]).read_text() for fragment in hook["fragments"])
    assert "](docs/" in text, "there is something to replace"
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    assert [target for target in re.findall(r"\]\(([^)]*)\)", text) if not target.startswith("https://")] == []
    assert "The command line" in text
    assert "python -m examples.windowed_join" in text


def test_every_python_that_is_tested_is_in_the_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = re.search(r"^VERSIONS = sorted\(\{(.*), HERE\}", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert tested is not None
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == re.findall(r"3\.\d+", tested[1])


def test_every_exported_name_is_there() -> None:
    assert [name for name in aiokcc.__all__ if name != "spark" and not hasattr(aiokcc, name)] == []
    assert aiokcc.Partition("orders", 3) == ("orders", 3)
    assert aiokcc.Record.__origin__ is ConsumerRecord
    with pytest.raises(AttributeError, match="module 'aiokcc' has no attribute 'Recrod'"):
        aiokcc.Recrod  # type: ignore[attr-defined]  # noqa: B018
