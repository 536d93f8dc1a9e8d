"""Checks that Spark is told how to log in to Kafka, where the consumer is.

A pipeline reaches Kafka in two ways. aiokafka's consumer looks up the boundaries, and takes ``security_protocol``,
``sasl_mechanism`` and so on. Spark's own consumer reads the records, in Java and on other machines, and takes options such as
``kafka.security.protocol``. Where one of them lacks what the other has, it waits for an answer that never comes. So both are
compared before anything is connected. No value of a secret is ever part of an error, or of what py4j logs of our calls.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokcc.core.masking import HIDDEN, is_secret
from aiokcc.credentials import hide_secrets
from aiokcc.errors import UsageError

__all__ = ["check_security", "check_sink_security"]

_PROTOCOL: Final = "kafka.security.protocol"
_MECHANISM: Final = "kafka.sasl.mechanism"
_JAAS: Final = "kafka.sasl.jaas.config"
_TOKENS: Final = "spark.kafka.clusters."
_JAAS_FILE: Final = "java.security.auth.login.config"
_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
}


def check_security(consumer: Mapping[str, Any], kafka_options: Mapping[str, str], spark: Any) -> None:
    """Raise UsageError if the consumer has settings of security and Spark's source lacks its own, or has others.

    Delegation tokens and a JAAS file for all of Java count as well: Spark takes them from its session's settings.
    """
    given = {name.lower(): value for name, value in kafka_options.items()}
    protocol = str(consumer.get("security_protocol") or "PLAINTEXT").upper()
    theirs = given.get(_PROTOCOL, "PLAINTEXT").upper()
    conf = _settings(spark)
    if any(name.startswith(_TOKENS) for name in conf):
        return
    if _PROTOCOL in given and theirs != protocol:
        raise UsageError(
            f"{_PROTOCOL} in kafka_options is {theirs!r} and security_protocol is {protocol!r}: Spark and the consumer that "
            f"looks up the boundaries reach the same servers, so give both the same protocol"
        )
    mechanism = _mechanism(consumer)
    if protocol.startswith("SASL") and given.get(_MECHANISM, mechanism) != mechanism:
        raise UsageError(
            f"{_MECHANISM} in kafka_options is {given[_MECHANISM]!r} and sasl_mechanism is {mechanism!r}: Spark and the "
            f"consumer that looks up the boundaries log in to the same servers, so give both the same mechanism"
        )
    needed = _needed(protocol, mechanism, conf)
    missing = [name for name in needed if name not in given]
    if missing:
        example = ", ".join(f"{name!r}: {needed[name]!r}" for name in missing)
        raise UsageError(
            f"security_protocol is {protocol!r} for the consumer that looks up the boundaries, but Spark reads the records "
            f"through a consumer of its own, and kafka_options lacks {', '.join(missing)}. Give kafka_options={{{example}}}, "
            f"or the credentials once for both, as kafka='client.properties'"
        )


def check_sink_security(
    consumer: Mapping[str, Any],
    servers: Collection[str],
    sink_servers: Collection[str],
    sink: Mapping[str, str],
    spark: Any,
) -> None:
    """Raise UsageError if the source logs in, and a KafkaSink on one of the same servers does not.

    The sink may log in as somebody else, and by another mechanism.
    """
    protocol = str(consumer.get("security_protocol") or "PLAINTEXT").upper()
    conf = _settings(spark)
    shared = sorted({*servers} & {*sink_servers})
    if protocol == "PLAINTEXT" or not shared or any(name.startswith(_TOKENS) for name in conf):
        return
    needed = _needed(protocol, _mechanism(consumer), conf)
    missing = [name for name in needed if name not in {given.lower() for given in sink}]
    if missing:
        example = ", ".join(f"{name!r}: {needed[name]!r}" for name in missing)
        raise UsageError(
            f"security_protocol is {protocol!r} for the source, and the KafkaSink writes to {shared[0]} too, but its "
            f"kafka_options lack {', '.join(missing)}. Give KafkaSink(..., kafka_options={{{example}}}), "
            f"or kafka='client.properties'"
        )


def _mechanism(consumer: Mapping[str, Any]) -> str:
    return str(consumer.get("sasl_mechanism") or "PLAIN")


def _needed(protocol: str, mechanism: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the options that Kafka's Java client needs, with the form of their values."""
    needed = {_PROTOCOL: protocol} if protocol != "PLAINTEXT" else {}
    if protocol.startswith("SASL"):
        if mechanism != "GSSAPI":  # that is the default of Kafka's Java client
            needed[_MECHANISM] = mechanism
        if not any(_JAAS_FILE in value for value in conf.values()):
            needed[_JAAS] = _jaas(mechanism)
    return needed


def _jaas(mechanism: str) -> str:
    """Return the form of the JAAS line, with dots in place of what is secret."""
    if mechanism == "GSSAPI":
        return "com.sun.security.auth.module.Krb5LoginModule required ...;"
    module = f"org.apache.kafka.common.security.{_MODULES.get(mechanism, '...')}"
    return f"{module} required;" if mechanism == "OAUTHBEARER" else f'{module} required username="..." password="...";'


def _settings(spark: Any) -> dict[str, str]:
    """Return the session's settings; none where it cannot tell, such as through Spark Connect."""
    try:
        return dict(spark.sparkContext.getConf().getAll())
    except Exception:  # noqa: BLE001 - whatever stands for a session here, it is asked again by the first job
        return {}


class _HideSecrets(logging.Filter):
    """Hides secrets in what py4j logs at DEBUG: every call to Java with all its arguments, each on a line of its own."""

    _NAME_AND_VALUE: Final = re.compile(r"^s(?P<name>[\w.-]+)\ns(?P<value>.*)$", re.MULTILINE)

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the argument behind the name of a secret, and what looks like a secret elsewhere. Always returns True."""
        text = self._NAME_AND_VALUE.sub(
            lambda found: f"s{found['name']}\ns{HIDDEN}" if is_secret(found["name"]) else found[0], record.getMessage()
        )
        record.msg, record.args = hide_secrets(text), None
        return True


for _name in ("py4j.java_gateway", "py4j.clientserver"):
    logging.getLogger(_name).addFilter(_HideSecrets())
