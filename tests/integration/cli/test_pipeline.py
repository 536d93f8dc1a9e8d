"""``aiokcc pipeline`` as a user runs it, with a Spark of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas
import pytest

import aiokcc
from aiokcc import local
from aiokcc.core.periods import format_time
from tests.integration.cli.commands import run
from tests.replays import at, topic

FUNCTIONS = """
def counted(frame, periods):
    return frame.groupBy("period").count()

def doubled(frame, periods):
    return frame.groupBy("period").count().selectExpr("period", "2 * count AS count")

def wrong(frame, periods):
    return frame.select("period", "kountry")
"""


@pytest.mark.timeout(300)
async def test_a_pipeline_is_run_shown_and_its_history_read(
    kafka: local.Kafka, zk_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions_of_pipeline.py").write_text(FUNCTIONS)
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    properties = tmp_path / "client.properties"
    properties.write_text(f"bootstrap.servers={kafka.bootstrap}\nsecurity.protocol=PLAINTEXT\n")
    environment = {"AIOKCC_STORE": zk_root, "AIOKCC_KAFKA_CONFIG": str(properties), "PYTHONPATH": search}
    name = await topic(kafka, [at(0), at(1)], [at(1.5)])
    out = tmp_path / "out"
    words = [
        "pipeline",
        "run",
        "functions_of_pipeline:counted",
        "--topic",
        name,
        "--period",
        "1m",
        "--master",
        "local[2]",
    ]
    words += ["--available-now", "--sink", f"parquet:{out}", "--name"]

    first = await run(*words, "counts", **environment)
    assert (first.code, "published 2 periods with 3 records" in first.err) == (0, True), first.err
    assert len(aiokcc.spark.files(out)) == 2

    words[2] = "functions_of_pipeline:wrong"
    failed = await run(*[word.replace(str(out), str(tmp_path / "other")) for word in words], "fails", **environment)
    assert failed.code == 1
    assert "kountry" in failed.err
    assert "QueryContextLogger" not in failed.err, "PySpark has written the error, too"

    words[2] = "functions_of_pipeline:counted"
    refused = await run(*words, "another", **environment)
    assert (refused.code, "'counts'" in refused.err, "'another'" in refused.err) == (2, True, True), refused.err

    status = await run("pipeline", "status", "--json", **environment)
    assert status.code == 3
    _, counts, fails = json.loads(status.out)
    assert (counts["name"], counts["batch"], counts["published_to"], counts["error"]) == ("counts", 0, at(2), None)
    assert (fails["name"], fails["pending"][0], fails["published_to"]) == ("fails", 0, None)
    assert "kountry" in fails["error"]
    whole = await run("status", **environment)
    assert "Pipelines (3)" in whole.out
    assert "has failed" in whole.out

    history = await run("pipeline", "history", "--name", "counts", "--json", **environment)
    entries = json.loads(history.out)
    assert (entries[0].pop("version"), ":" in entries[0].pop("fingerprint")) == (None, True)
    assert entries == [
        {
            "batch": 0,
            "attempt": 1,
            "from": format_time(at(0)),
            "to": format_time(at(2)),
            "periods": 2,
            "rows": 2,
            "offsets": f"{name}.0 0-2 {name}.1 0-1",
        }
    ]

    restated = await run(
        *("pipeline", "restate", "functions_of_pipeline:doubled", "--name", "counts", "--master", "local[2]"),
        *("--from", format_time(at(1)), "--to", format_time(at(2))),
        **environment,
    )
    assert (restated.code, "restated 1 period with 2 records" in restated.err) == (0, True), restated.err
    assert sorted(pandas.read_parquet(aiokcc.spark.files(out))["count"]) == [1, 4]
    assert sorted(pandas.read_parquet(aiokcc.spark.files(out, as_of=0))["count"]) == [1, 2]
    history = await run("pipeline", "history", "--name", "counts", "--json", **environment)
    assert [(entry["batch"], entry.get("restatement")) for entry in json.loads(history.out)] == [(0, None), (0, 0)]
    shown = await run("pipeline", "history", "--name", "counts", **environment)
    assert "counts: 1 batch, 1 restatement" in shown.out
    late = await run("pipeline", "late", "--name", "counts", **environment)
    assert (late.code, late.out.strip()) == (0, "counts: no late records wait.")


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("csv:out", "expected parquet:DIRECTORY or delta:URI"),
        ("parquet:s3://bucket/out", "is not on a POSIX file system"),
    ],
)
async def test_wrong_arguments_are_refused_before_spark_starts(sink: str, said: str) -> None:
    ended = await run(
        *("pipeline", "run", "json:dumps", "--name", "p", "--topic", "t", "--period", "1m", "--sink", sink),
        *("--store", "memory://x", "--bootstrap-servers", "h:1"),
    )
    assert (ended.code, said in ended.err) == (2, True), ended.err


async def test_a_restatement_without_times_is_refused_before_spark_starts() -> None:
    words = (
        "pipeline",
        "restate",
        "json:dumps",
        "--name",
        "p",
        "--store",
        "zk://127.0.0.1:1/x",
        "--bootstrap-servers",
        "h:1",
    )
    ended = await run(*words)
    assert (ended.code, "Give --from TIME --to TIME, or --late" in ended.err) == (2, True), ended.err
    ended = await run(*words, "--late", "--to", "2026-01-01T00:00Z")
    assert (ended.code, "leave --from and --to out" in ended.err) == (2, True), ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("restate", "json:dumps"), "Give --from TIME --to TIME, or --late"),
        (("run", "json:dumps", "--topic", "t", "--period", "1m", "--sink", "csv:out"), "expected parquet:DIRECTORY"),
    ],
)
async def test_kafka_is_found_by_its_client_properties(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """Also in the profile, as all verbs that read Kafka do."""
    properties, same = tmp_path / "client.properties", ("--name", "p", "--store", "zk://127.0.0.1:1/x")
    properties.write_text("bootstrap.servers=h:1\n")
    (tmp_path / "aiokcc.toml").write_text('[profiles.here]\nkafka = "client.properties"\n')
    by_file = await run("pipeline", *words, *same, "--kafka-config", str(properties))
    by_profile = await run("pipeline", *words, *same, "--config", str(tmp_path / "aiokcc.toml"), "--profile", "here")
    for ended in (by_file, by_profile):
        assert (ended.code, said in ended.err) == (2, True), ended.err
    properties.write_text("client.id=x\n")
    nowhere = await run("pipeline", *words, *same, "--kafka-config", str(properties))
    assert "where is Kafka?" in nowhere.err


async def test_an_unknown_pipeline_is_an_error(zk_root: str) -> None:
    ended = await run("pipeline", "history", zk_root, "--name", "nobody")
    assert ended.code == 1
    assert "there is no pipeline 'nobody'" in ended.err
