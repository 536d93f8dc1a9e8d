"""Counts, durations and names as the command line prints them."""

from __future__ import annotations

from aiokcc.core.formatting import count, format_elapsed, join_names


def test_durations_counts_and_names() -> None:
    spans = [0.04, 9.94, 10, 59.9, 60, 3599, 3600, 86_399, 86_400, -5]
    assert [format_elapsed(s) for s in spans] == [
        "0.0s",
        "9.9s",
        "10s",
        "59s",
        "1m",
        "59m59s",
        "1h",
        "23h59m",
        "1d",
        "0.0s",
    ]
    assert [count(n, "member") for n in (0, 1, 1024)] == ["0 members", "1 member", "1,024 members"]
    assert [count(n, "batch") for n in (1, 2)] == ["1 batch", "2 batches"]
    assert [join_names("abcde"[:n]) for n in (0, 1, 2, 3, 5)] == [
        "",
        "a",
        "a and b",
        "a, b and c",
        "a, b, c and 2 more",
    ]
