"""Reports and cuts: what the nodes hold, and what they never can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokcc.core.marks import Mark
from aiokcc.core.partitions import Partition
from aiokcc.core.periods import MAX_LIMIT, MAX_TIMESTAMP
from aiokcc.core.report import Cut, Report
from aiokcc.errors import CorruptNodeError
from tests.unit.core.reports import report_of
from tests.unit.core.test_partitions import partitions
from tests.unit.naming import brief

offsets = st.none() | st.integers(0, MAX_LIMIT)
words = st.sampled_from(["idle", "finished", "running"]) | st.integers(0, MAX_TIMESTAMP).map(str)
entries = st.builds(lambda word, offset: word if offset is None else f"{word}@{offset}", words, offsets)
reports = st.builds(
    report_of,
    st.integers(0, 10**18),
    st.integers(0, MAX_LIMIT),
    st.dictionaries(partitions.map(str), entries, min_size=1, max_size=8),
)
members = st.from_regex(r"\A[A-Za-z0-9._-]{1,12}\Z")
marks = st.builds(Mark, offsets, st.booleans())


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    """A cut of a few members that share some partitions out among themselves."""
    shared = draw(st.lists(partitions, unique=True, max_size=8))
    by_member: dict[str, dict[Partition, Mark]] = {}
    for partition in sorted(shared):
        by_member.setdefault(draw(st.sampled_from(["a-1", "b-2", "c%d-3"])), {})[partition] = draw(marks)
    number, generation = draw(st.integers(0, 10**18)), draw(st.integers(0, 10**18))
    previous, limit = draw(st.integers(0, MAX_LIMIT)), draw(st.integers(0, MAX_LIMIT))
    return Cut(number, previous, limit, generation, by_member)


def mutated(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Valid content with something cut out, put in, or said twice."""

    def change(data: bytes, at: int, length: int, new: bytes, twice: bool) -> bytes:
        at = at % (len(data) + 1)
        piece = data[at : at + length]
        return data[:at] + (piece + piece if twice else new) + data[at + length :]

    spice = st.binary(max_size=4) | st.sampled_from([b";", b":", b",", b"\n", b" ", b"?", b"!", b"-", b"9" * 30])
    return st.builds(change, valid, st.integers(0, 200), st.integers(0, 30), spice, st.booleans())


def test_a_report_is_readable() -> None:
    report = report_of(3, 60, {"orders.0": "61@55", "orders.1": "idle@9", "payments.0": "finished@120"})
    assert report.encode() == b"3 60 61\norders:0,1;payments:0;\n61,idle,finished;\n55,9,120!;"
    assert (report.minimum, report.idle, report.finished, report.running) == (61, True, True, False)


def test_a_report_without_a_blocked_partition_has_no_minimum() -> None:
    assert report_of(3, 60, {"orders.0": "idle"}).encode() == b"3 60 -\norders:0;\nidle;\n?;"


def test_a_report_that_does_not_count_says_so_in_its_first_line() -> None:
    assert report_of(3, 60, {"o.0": "running", "o.1": "70"}).encode() == b"3 60 running\no:0,1;\nrunning,70;\n?,?;"


def test_the_partitions_of_a_report_are_parsed_once() -> None:
    first = Report.decode("/r", b"3 60 61\norders:0,1;\n61,62;\n5,6;")
    assert first is not None
    again = Report.decode("/r", b"3 70 71\norders:0,1;\n71,72;\n7,8;", first)
    assert again is not None
    assert again.partitions is first.partitions
    assert list(again.entries) == [Partition("orders", 0), Partition("orders", 1)]
    others = Report.decode("/r", b"3 70 71\norders:0,2;\n71,72;\n7,8;", again)
    assert others is not None
    assert list(others.entries) == [Partition("orders", 0), Partition("orders", 2)]
    with pytest.raises(CorruptNodeError):
        Report.decode("/r", b"3 70 71\norders:0,1;\n71,72,73;\n7,8,9;", others)


@given(reports)
def test_a_report_can_be_read_back(report: Report) -> None:
    assert Report.decode("/r", report.encode()) == report


def test_an_empty_node_is_no_report_and_an_unused_slot_no_cut() -> None:
    assert Report.decode("/r", b"") is None
    assert Cut.decode("/c", b"") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"x",
        b"3 60 61",  # the partitions are missing
        b"3 60 61\n",
        b"3 60 61\norders:0;",
        b"3 60 61\norders:0;\n61;",
        b"3 60 61\norders:0;\n61;\n",
        b"3 60 61\norders:0;\n61;\n5",  # truncated: it could have been 55
        b"3 60 61\norders:0\n61;\n55;",
        b"3 60 61\norders:0;\n61\n55;",
        b"3 60 -\n\n;\n;",  # no partition
        b"3 60 -\n;\n;\n;",
        b"3 60 61\norders:0,1;\n61;\n55;",  # the lines are not equally long
        b"3 60 61\norders:0;\n61,62;\n55;",
        b"3 60 61\norders:0;\n61;\n55,56;",
        b"3 60 61\norders:0,1;\n61,62;\n55;",
        b"3 60 60\norders:0;\n61;\n55;",  # the minimum is wrong
        b"3 60 62\norders:0,1;\n61,62;\n5,6;",
        b"3 60 -\norders:0;\n61;\n55;",
        b"3 60 61\norders:0;\nidle;\n55;",
        b"3 60 running\norders:0;\n61;\n55;",
        b"3 60 61\norders:0,0;\n61,61;\n55,55;",  # said twice
        b"3 60 61\norders:0;orders:0;\n61,62;\n55,56;",
        b"3 60 -\norders:0;\nfinished;\n55;",  # finished in one line only
        b"3 60 61\norders:0;\n61;\n55!;",
        b"3 60 61\norders:0;\n61;\n-1;",
        b"3 60 61\norders:0;\n61;\n55,;",
        b"3 60 61\norders:0;\n61;\n5 5;",
        b"3 60 -1\norders:0;\n-1;\n55;",
        b"-3 60 61\norders:0;\n61;\n55;",
        b"+3 60 61\norders:0;\n61;\n55;",
        b"3 6_0 61\norders:0;\n61;\n55;",
        b"3 -60 61\norders:0;\n61;\n55;",
        b"3 9223372036854775808 61\norders:0;\n61;\n55;",
        b"3 60 9223372036854775807\norders:0;\n9223372036854775807;\n55;",  # no limit could ever pass it
        b"3 60 " + b"9" * 5000 + b"\norders:0;\n" + b"9" * 5000 + b";\n55;",
        b"9" * 5000 + b" 60 61\norders:0;\n61;\n55;",
        b"3 60 61\norders:0;\n61;\n" + b"9" * 5000 + b";",
        b"3 60 61\norders:;\n61;\n55;",
        b"3 60 61\n:0;\n61;\n55;",
        b"3 60 61\norders.0;\n61;\n55;",
        b"3 60 61\norders:0;\nbusy;\n55;",
        b"3 60 61\norders:0;\n;\n55;",
        b"3  60 61\norders:0;\n61;\n55;",
        b"3 60 61\norders:0;\n61;\n55;\n",
        b"3 60 1 61\norders.0:61@55;",  # as an earlier version wrote it
        "3 60 61\nörders:0;\n61;\n55;".encode(),
        "3 ٦٠ 61\norders:0;\n61;\n55;".encode(),
        b"\xff\xfe\x00",
        b"\x00" * 1_000_000,
        b"1 " * 500_000,
        b"3 60 61\n" + b"a." * 500_000,
        b"3 60 61\n" + b"a:1;" * 250_000 + b"\n61;\n55;",
        b"3 60 61\norders:0;\n" + b"61," * 300_000 + b"\n55;",
        b"3 60 61\norders:0;\n61;\n" + b"1" * 900_000 + b"-;",
    ],
    ids=brief,
)
def test_an_invalid_report_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError) as caught:
        Report.decode("/g/progress/w-1", data)
    assert "/g/progress/w-1 holds" in str(caught.value)
    assert "expected a first line 'generation limit minimum'" in str(caught.value)


def test_a_cut_is_readable() -> None:
    cut = Cut(
        17,
        0,
        60,
        3,
        {
            "worker-1": {Partition("orders", 0): Mark(55), Partition("orders", 1): Mark(None)},
            "worker-2": {Partition("orders", 2): Mark(9), Partition("payments", 0): Mark(120, finished=True)},
        },
    )
    assert cut.encode() == b"17 0 60 3\nworker-1 orders:0,1; 55,?;\nworker-2 orders:2;payments:0; 9,120!;"
    assert cut.finished() == {Partition("payments", 0): ("worker-2", Mark(120, finished=True))}
    assert cut.owners()[Partition("orders", 1)] == "worker-1"
    assert cut.find(Partition("orders", 2)) == Mark(9)
    assert cut.find(Partition("orders", 3)) is None


@given(cuts())
def test_a_cut_can_be_read_back(cut: Cut) -> None:
    assert Cut.decode("/c", cut.encode()) == cut


def test_one_member_may_stand_in_two_lines() -> None:
    """One line has the partitions that it runs now, the other those that it had finished before."""
    cut = Cut.decode("/c", b"1 0 10 1\nw-1 a:0; 5;\nw-1 a:1; 7!;")
    assert cut is not None
    assert cut.marks == {"w-1": {Partition("a", 0): Mark(5), Partition("a", 1): Mark(7, finished=True)}}


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"1 0 10",
        b"1 0 10 1 1",
        b"1 0 -10 1",
        b"1 0 1_0 1",
        b"+1 0 10 1",
        b"1 0 9223372036854775808 1",
        b"9" * 5000 + b" 0 10 1",
        b"1 0 10 1\n",
        b"1 0 10 1\nw-1",
        b"1 0 10 1\nw-1 ",
        b"1 0 10 1\nw-1 a:0; 5",  # truncated: it could have been 55
        b"1 0 10 1\nw-1 a:0;",
        b"1 0 10 1\nw-1 a:0; ",
        b"1 0 10 1\nw-1 a:0; ;",
        b"1 0 10 1\nw-1 a:0 5;",
        b"1 0 10 1\nw-1 :0; 5;",
        b"1 0 10 1\n a:0; 5;",
        b"1 0 10 1\nw-1 a:0,1; 5;",  # the lines are not equally long
        b"1 0 10 1\nw-1 a:0; 5,6;",
        b"1 0 10 1\nw-1 a:0,0; 5,6;",  # said twice
        b"1 0 10 1\nw-1 a:0; 5;\nw-2 a:0; 5;",
        b"1 0 10 1\nw-1 a:0; -5;",
        b"1 0 10 1\nw-1 a:0; 5?;",
        b"1 0 10 1\nw-1 a:0; " + b"9" * 5000 + b";",
        b"1 0 10 1\nw-1 a:0@5;",  # as an earlier version wrote it
        "1 0 10 1\nwörker a:0; 5;".encode(),
        b"\xff\xfe",
        b"\n" * 1_000_000,
        b"1 0 10 1\nw " + b":@," * 300_000,
    ],
    ids=brief,
)
def test_an_invalid_cut_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="^/g/cuts/1 holds") as caught:
        Cut.decode("/g/cuts/1", data)
    assert "expected a first line 'number previous limit generation'" in str(caught.value)


@pytest.mark.parametrize("decode", [Report.decode, Cut.decode], ids=["report", "cut"])
@given(
    data=st.binary(max_size=60)
    | mutated(reports.map(Report.encode))
    | mutated(cuts().map(Cut.encode))
    | st.from_regex(rb"\A[0-9]+ [0-9]+ ([0-9]+|-)\n([a-z]:[0-9];){1,2}\n([0-9]+,?){1,2};\n([0-9]+!?,?){1,2};\Z")
)
def test_any_bytes_are_stable_or_corrupt(decode: Callable[[str, bytes], Report | Cut | None], data: bytes) -> None:
    try:
        value = decode("/n", data)
    except CorruptNodeError as error:
        assert error.content == data
        return
    if value is None:
        assert data == b""
    else:
        again = value.encode()
        assert decode("/n", again) == value
        decoded = decode("/n", again)
        assert decoded is not None
        assert decoded.encode() == again


def test_a_report_is_written_again_only_if_it_says_something_new() -> None:
    blocked = report_of(3, 60, {"o.0": "75@5"})
    assert blocked.supersedes(None)
    assert not blocked.supersedes(blocked)
    assert not report_of(3, 70, {"o.0": "75@5"}).supersedes(blocked), "blocked stays true over several limits"
    assert report_of(4, 60, {"o.0": "75@5"}).supersedes(blocked), "another generation"
    assert report_of(3, 60, {"o.0": "76@5"}).supersedes(blocked)
    assert report_of(3, 60, {"o.0": "75@6"}).supersedes(blocked)
    assert report_of(3, 60, {"o.0": "75@5", "o.1": "80"}).supersedes(blocked)
    idle = report_of(3, 60, {"o.0": "idle@5"})
    assert not idle.supersedes(idle)
    assert report_of(3, 70, {"o.0": "idle@5"}).supersedes(idle), "idle holds for one limit only"
    assert not report_of(3, 70, {"o.0": "finished@5"}).supersedes(report_of(3, 60, {"o.0": "finished@5"}))
