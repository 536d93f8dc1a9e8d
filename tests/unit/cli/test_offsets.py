"""The arguments of ``aiokcc offsets``, and the files that it writes and reads; nothing is connected."""

from __future__ import annotations

import json

import pytest

from aiokcc.cli import main
from aiokcc.cli.arguments import parse
from aiokcc.cli.offset_files import as_csv, as_entry, as_json, read
from aiokcc.core.committed_offset import CommittedOffset
from aiokcc.core.partitions import Partition
from aiokcc.errors import UsageError

URL = "zk://127.0.0.1:2181/replay"
KAFKA = ["--bootstrap-servers", "127.0.0.1:9092"]
COMMITS = {
    Partition("orders", 1): CommittedOffset(7),
    Partition("orders", 0): CommittedOffset(5, 1767225600000, 3, 1767225661234, "worker-1"),
}
OFFSETS = {Partition("orders", 0): 5, Partition("orders", 1): 7}


@pytest.mark.parametrize("action", ["", "show", "set", "reset", "export", "import", "migrate"])
def test_the_help_has_examples(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offsets", *filter(None, [action]), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"aiokcc offsets {action}" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "ACTION"),
        (["list"], "invalid choice: 'list'"),
        (["show"], "as in `aiokcc offsets show zk://127.0.0.1:2181/replay`"),
        (["show"], "or --group-id, for offsets that are stored in Kafka"),
        (["show", "memory://x"], "exists only inside the process"),
        (["show", "--group-id", ""], "it is empty; expected a name"),
        (["show", "--group-id", "g"], "where is Kafka?"),
        (["show", URL, "--bootstrap-servers", URL], "expected HOST:PORT, without a scheme"),
        (["set", URL, *KAFKA], "TOPIC, PARTITION, OFFSET"),
        (["set", "orders", "0", "-1", URL, *KAFKA], "'-1' is not an offset; expected a whole number from 0 up"),
        (["set", "orders", "0", "1.5", URL, *KAFKA], "'1.5' is not an offset"),
        (["set", "orders", "0", "9223372036854775808", URL, *KAFKA], "is not an offset"),
        (["set", "orders", "-1", "0", URL, *KAFKA], "'-1' is not a partition; expected a whole number from 0 up"),
        (["set", "orders", "0", "1", URL], "where is Kafka?"),
        (["reset", "yesterday", URL, *KAFKA], "the time 'yesterday' cannot be read"),
        (["reset", "yesterday", URL, *KAFKA], "or 'earliest' or 'latest'"),
        (["reset", URL, *KAFKA], "TO"),
        (["export", URL, "--format", "xml"], "invalid choice: 'xml'"),
        (["import", "/nowhere.json", URL, *KAFKA], "there is no file /nowhere.json; '-' is standard input"),
        (["migrate", URL, "--group-id", "g", *KAFKA], "--to"),
        (["migrate", "--to", "redis", URL, *KAFKA], "invalid choice: 'redis'"),
        (["migrate", "--to", "zookeeper", URL, *KAFKA], "write 'store'"),
        (["migrate", "--to", "kafka", URL, *KAFKA], "migrate needs --group-id, for Kafka, and"),
        (["migrate", "--to", "kafka", "--group-id", "g", *KAFKA], "migrate needs --group-id, for Kafka, and"),
        (["show", URL, *KAFKA, "--consumer", "sasl_mechanism=X"], "sasl_mechanism is 'X'"),
        (["show", URL, *KAFKA, "--consumer", "no_such=1"], "no_such is no setting of aiokafka's consumer"),
        (["set", "orders", "0", "x"], "Try 'aiokcc offsets set --help'."),
    ],
)
def test_an_invalid_argument_is_explained_and_exits_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIOKCC_STORE", "AIOKCC_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    assert main(["offsets", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_the_environment_variables_are_used_if_nothing_is_given() -> None:
    options = parse(["offsets", "show"], {"AIOKCC_STORE": URL, "AIOKCC_BOOTSTRAP_SERVERS": "h:1"})
    assert (options.store, options.bootstrap_servers, options.group_id) == (URL, "h:1", None)
    options = parse(["offsets", "reset", "2026-01-01T00:00Z", "--topic", "a", "--topic", "b", URL], {})
    assert (options.to, options.topic, options.store) == (1767225600000, ["a", "b"], URL)
    assert parse(["offsets", "reset", "latest", URL], {}).to == "latest"
    assert parse(["offsets", "show", "--group-id", "g"], {}).store is None


def test_json_and_csv_files_are_read_as_they_were_written() -> None:
    text = as_json("here", "store", [as_entry(p, commit) for p, commit in sorted(COMMITS.items())])
    assert json.loads(text)["offsets"][0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 5,
        "at": 1767225661234,
        "time": "2026-01-01T00:01:01.234Z",
        "by": "worker-1",
        "generation": 3,
        "run": 1767225600000,
    }
    assert as_csv(COMMITS).splitlines()[:2] == ["topic,partition,offset,at,by", "orders,0,5,1767225661234,worker-1"]
    assert read(text, "file") == read(as_csv(COMMITS), "file") == OFFSETS


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"offsets": {}}', "[[]]", "a\tb", '"', "topic,partition,offset\n,0,1", "topic,partition,offset\nx,0"],
)
def test_the_error_for_an_invalid_file_has_its_name(text: str) -> None:
    with pytest.raises(UsageError, match="offsets.txt"):
        read(text, "offsets.txt")
