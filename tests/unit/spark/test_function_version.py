"""A pipeline says when its function has changed. Without Spark."""

from __future__ import annotations

import pytest

from aiokcc.errors import UsageError
from aiokcc.spark.function_version import FunctionVersion, check_version, describe_change

OLD, NEW = "4.0.0:0123456789abcdef", "4.0.0:fedcba9876543210"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (FunctionVersion("1", OLD), FunctionVersion("1", NEW), "its version is still '1'"),
        (FunctionVersion(None, OLD), FunctionVersion(None, NEW), "it has no version"),
    ],
)
def test_another_plan_with_the_same_version_is_said(before, now, said):
    sentence = describe_change(before, now, 7)
    assert sentence is not None
    assert said in sentence
    assert "from batch 7 on" in sentence


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (FunctionVersion("1", OLD), FunctionVersion("1", OLD)),
        (FunctionVersion("1", OLD), FunctionVersion("2", NEW)),
        (FunctionVersion(None, OLD), FunctionVersion("1", NEW)),
        (FunctionVersion("1", None), FunctionVersion("1", NEW)),
        (FunctionVersion("1", OLD), FunctionVersion("1", None)),
        (FunctionVersion("1", OLD), FunctionVersion("1", NEW.replace("4.0.0", "4.1.0"))),
    ],
    ids=["the same", "a new version", "a first version", "not known before", "not known now", "another Spark"],
)
def test_nothing_is_said_otherwise(before, now):
    assert describe_change(before, now, 7) is None


def test_what_the_store_holds_is_read_back_and_nonsense_is_not_known():
    known = FunctionVersion("2", OLD)
    assert FunctionVersion.decode(known.encode()) == known
    assert FunctionVersion.decode(b"\xff{") == FunctionVersion()
    assert FunctionVersion.decode(b"[]") == FunctionVersion()


@pytest.mark.parametrize("version", [2, "", "x" * 101])
def test_unusable_version_is_refused(version):
    with pytest.raises(UsageError, match="version is .*; expected a short text"):
        check_version(version)
