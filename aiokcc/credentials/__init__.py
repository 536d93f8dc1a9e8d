"""Turns what a user writes about security into what the clients take: secrets, TLS contexts, Kafka's client properties."""

from aiokcc.credentials.kafka_client import KafkaClient, KafkaConfig
from aiokcc.credentials.known_secrets import hide_secrets, remember_secret, remember_secrets
from aiokcc.credentials.secret_values import is_reference, read_secret
from aiokcc.credentials.tls import explain_tls_error, make_tls_context

__all__ = [
    "KafkaClient",
    "KafkaConfig",
    "explain_tls_error",
    "hide_secrets",
    "is_reference",
    "make_tls_context",
    "read_secret",
    "remember_secret",
    "remember_secrets",
]
