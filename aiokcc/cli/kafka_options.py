"""The options by which several verbs reach Kafka: its servers, its client properties, and settings of aiokafka."""

from __future__ import annotations

import argparse
from typing import Any, Final

from aiokcc.cli.argument_types import setting
from aiokcc.cli.verb import KAFKA, SERVERS, AddArgument, argument
from aiokcc.credentials import KafkaClient
from aiokcc.errors import UsageError

__all__ = ["KAFKA_ARGUMENTS", "consumer_settings", "load_kafka"]

KAFKA_ARGUMENTS: Final[tuple[AddArgument, ...]] = (
    argument("--bootstrap-servers", metavar="HOST:PORT,…", help=f"Kafka; default: ${SERVERS}, or as in --kafka-config"),
    argument(
        "--kafka-config",
        metavar="FILE",
        help="Kafka's client properties (security.protocol, ssl.*, sasl.*), with values such as env:NAME and file:PATH; "
        f"default: ${KAFKA}, or the profile's kafka",
    ),
    argument(
        "--consumer",
        action="append",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of aiokafka's consumer, such as fetch_max_wait_ms=100; may be repeated",
    ),
)


def load_kafka(options: argparse.Namespace) -> KafkaClient:
    """Return the client properties in force, and take the servers from them if none are given.

    Raises UsageError for what is invalid, also for TLS by --consumer: its context is an object, which cannot be typed.
    """
    given = dict(options.consumer)
    if given.get("security_protocol") in {"SSL", "SASL_SSL"} or "ssl_context" in given:
        raise UsageError(
            "--consumer cannot give TLS, which needs certificates; write them into a file for --kafka-config: "
            "security.protocol=SSL and ssl.truststore.location=ca.pem (see aiokcc config --help)"
        )
    client = KafkaClient.load(options.kafka, options.kafka_origin)
    options.bootstrap_servers = options.bootstrap_servers or client.bootstrap_servers
    return client


def consumer_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of aiokafka's consumer. Those of --consumer replace those of the properties."""
    return {**load_kafka(options).consumer, **dict(options.consumer)}
