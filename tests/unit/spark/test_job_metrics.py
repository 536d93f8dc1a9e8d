"""The metrics of a pipeline's jobs."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from aiokcc.runtime.metrics import collect, observing
from aiokcc.spark.job_metrics import JobMetrics
from aiokcc.spark.progress import Summary
from aiokcc.views.exposition import prometheus_text


def test_jobs_are_told_with_their_time_periods_and_rows() -> None:
    summary = Summary()
    metrics = JobMetrics({"group": "replay", "member": "one"}, "revenue", summary)
    for periods, seconds, rows in ((1, 0.2, 10), (60, 3.0, 600)):
        metrics.record_job(periods, seconds)
        summary.jobs += 1
        summary.records += rows
    summary.event_time = 3_600_000
    with observing(metrics.observe):
        text = prometheus_text(collect()).decode()
    samples = {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert {name: sample.value for name, sample in samples.items()} == {
        "aiokcc_spark_jobs_total": 2,
        "aiokcc_spark_rows_total": 610,
        "aiokcc_spark_job_duration_seconds_count": 2,
        "aiokcc_spark_job_duration_seconds_sum": 3.2,
        "aiokcc_spark_job_periods_count": 2,
        "aiokcc_spark_job_periods_sum": 61,
        "aiokcc_pipeline_published_seconds": 3600,
    }
    assert samples["aiokcc_spark_jobs_total"].labels == {"group": "replay", "member": "one", "pipeline": "revenue"}
