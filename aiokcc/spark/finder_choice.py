"""Chooses how a driver finds boundaries: by Kafka's index of times, or by a scan of the records."""

from __future__ import annotations

from aiokcc.core.partitions import Partition
from aiokcc.kafka.cluster import Cluster
from aiokcc.spark.finder import Finder
from aiokcc.spark.participant import Participant
from aiokcc.spark.pipeline_options import PipelineOptions
from aiokcc.spark.record_sampler import CheckedFinder, RecordSampler
from aiokcc.spark.scan import Scanner, ScanningFinder
from aiokcc.spark.spark_thread import SparkThread

__all__ = ["choose_finder"]


def choose_finder(
    options: PipelineOptions,
    cluster: Cluster,
    spark_thread: SparkThread,
    participant: Participant,
    sampler: RecordSampler,
) -> Finder:
    """Return what finds boundaries: Kafka's index, or a scan if event time is not Kafka's or the index is misleading."""
    source = options.source

    def bounds(partition: Partition) -> tuple[int, int | None]:
        track = participant.tracks[partition]
        return track.place.low, track.bounds.end

    scanner = Scanner(
        options.spark,
        options.timestamp,
        source.bootstrap_servers,
        {"kafka.isolation.level": source.isolation_level, **options.kafka_options},
        lambda: options.group.clock() + participant.member.settings.ahead,
    )
    named = [time for time in (source.start, source.end) if isinstance(time, int)]
    odd = {time + late for time in named for late in (0, *options.policy.lateness.values())}

    def scanning() -> Finder:
        period, lateness = options.group.settings.period, options.policy.lateness
        return ScanningFinder(cluster, spark_thread, scanner, bounds, period, lateness, odd)

    if options.timestamp is not None:
        return scanning()
    return CheckedFinder(cluster, sampler, options.group.settings.period, scanning)
