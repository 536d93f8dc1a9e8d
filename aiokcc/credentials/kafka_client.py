"""Kafka's client properties, as people have them in a file, for aiokafka and for Spark's connector alike.

A cluster's administrator hands out a ``client.properties`` for Java programs. aiokafka takes keywords and an SSL context,
Spark's Kafka source takes the properties with ``kafka.`` before their names. :class:`KafkaClient` gives both, so that
credentials are written once. The files that PEM properties name are read here, and Spark gets their content: its executors
run on other machines, which do not have the files.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiokcc.credentials.jaas import login_line, read_login
from aiokcc.credentials.known_secrets import remember_secret, remember_secrets
from aiokcc.credentials.properties_file import read_properties
from aiokcc.credentials.property_names import IGNORED, UNSUPPORTED
from aiokcc.credentials.secret_values import read_secret
from aiokcc.credentials.tls import Pem, how_to_convert, make_tls_context, read_pem
from aiokcc.errors import UsageError

__all__ = ["CONNECTION_SETTINGS", "KafkaClient", "KafkaConfig"]

KafkaConfig: TypeAlias = "str | Path | Mapping[str, object] | KafkaClient | None"
"""A properties file, its properties, or what :meth:`KafkaClient.load` has made of one."""

CONNECTION_SETTINGS: Final = frozenset(
    {
        "client_id",
        "security_protocol",
        "ssl_context",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_service_name",
        "sasl_kerberos_domain_name",
        "sasl_oauth_token_provider",
    }
)
"""The settings of aiokafka that concern every connection, whatever it is for."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS: Final = (*_PASSWORD_MECHANISMS, "GSSAPI")
_TLS_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


_PLAIN: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", int),
    "fetch.min.bytes": ("fetch_min_bytes", int),
    "fetch.max.bytes": ("fetch_max_bytes", int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", int),
    "check.crcs": ("check_crcs", _flag),
}
"""Properties that aiokafka has by another name, and the type of their values."""
_SECURITY: Final = (
    "security.protocol",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "sasl.kerberos.service.name",
    # librdkafka's names: a password alone can then be env:NAME, and certificate and key can be in files of their own.
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
_KNOWN: Final = frozenset({"bootstrap.servers", *_PLAIN, *_SECURITY})


@dataclass(frozen=True, kw_only=True)
class KafkaClient:
    """The settings with which a client reaches a cluster. Its repr shows no value."""

    bootstrap_servers: str | None = None
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keywords of aiokafka's consumer."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of Spark's Kafka source and sink, with ``kafka.`` before their names."""
    ignored: tuple[str, ...] = ()
    """Properties of Kafka's Java clients that mean nothing here, such as ``group.id``."""

    @classmethod
    def load(cls, given: KafkaConfig, what: str = "kafka") -> KafkaClient:
        """Return the client for a file or for properties, and read all files that they name.

        Values may be ``env:NAME`` or ``file:PATH``. Raises UsageError for a property that nobody knows, for a file that cannot
        be read, and for a Java key store. No error shows a secret.
        """
        if given is None:
            return cls()
        if isinstance(given, KafkaClient):
            return given
        if isinstance(given, Mapping):
            properties = {str(name): _text(value) for name, value in given.items()}
            where = what
        elif isinstance(given, str | Path):
            properties, where = read_properties(given, what), f"{what} {given}"
        else:
            raise UsageError(
                f"{what} is of type {type(given).__name__}; expected the path of a properties file, or the properties: "
                f'{{"security.protocol": "SASL_SSL", ...}}'
            )
        _check_names(properties, where)
        values = {
            name: read_secret(text, f"{where}: {name}") for name, text in properties.items() if name not in IGNORED
        }
        remember_secrets(values)
        try:
            return _build(values, tuple(name for name in properties if name in IGNORED))
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(properties: Mapping[str, str], where: str) -> None:
    for name in properties:
        if name in _KNOWN or name in IGNORED:
            continue
        if name in UNSUPPORTED:
            raise UsageError(
                f"{where}: {name} is a property of Kafka's Java client that aiokafka has nothing for; leave it out, or give "
                f"aiokafka's own settings in a program: aiokcc.replay(..., ssl_context=..., sasl_oauth_token_provider=...)"
            )
        near = difflib.get_close_matches(name, _KNOWN, 1)
        hint = f"; did you mean {near[0]}?" if near else "; it is none of Kafka's client either"
        raise UsageError(f"{where}: there is no property {name!r}{hint}")


def _build(values: Mapping[str, str], ignored: tuple[str, ...]) -> KafkaClient:
    consumer: dict[str, Any] = {}
    spark: dict[str, str] = {}
    for name, (keyword, convert) in _PLAIN.items():
        if name in values:
            try:
                consumer[keyword] = convert(values[name])
            except ValueError:
                kind = "true or false" if convert is _flag else "a whole number"
                raise UsageError(f"{name} is {values[name]!r}; expected {kind}") from None
            spark[name] = values[name]
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(f"security.protocol is {protocol!r}; expected one of {', '.join(_PROTOCOLS)}")
    for prefix, without in (("ssl.", "SSL"), ("sasl.", "SASL")):
        lost = next((name for name in values if name.startswith(prefix)), None)
        if lost is not None and without not in protocol:
            wanted = " or ".join(each for each in _PROTOCOLS if without in each)
            raise UsageError(f"{lost} is given, but security.protocol is {protocol}, which does not use it; {wanted}?")
    if protocol != "PLAINTEXT":
        consumer["security_protocol"] = spark["security.protocol"] = protocol
    if "SSL" in protocol:
        _add_tls(values, consumer, spark)
    if "SASL" in protocol:
        _add_login(values, consumer, spark)
    return KafkaClient(
        bootstrap_servers=values.get("bootstrap.servers"),
        consumer=consumer,
        spark={f"kafka.{name}": value for name, value in spark.items()},
        ignored=ignored,
    )


# TLS


def _add_tls(values: Mapping[str, str], consumer: dict[str, Any], spark: dict[str, str]) -> None:
    ca = _find_pem(values, "ssl.truststore", "ssl.truststore.certificates", "ssl.ca.location")
    certificate = _find_pem(values, "ssl.keystore", "ssl.keystore.certificate.chain", "ssl.certificate.location")
    key: Pem | None = None
    if "ssl.keystore.key" in values:
        key = Pem(values["ssl.keystore.key"], "ssl.keystore.key")
    elif "ssl.key.location" in values:
        key = read_pem(values["ssl.key.location"], "ssl.key.location")
    password = values.get("ssl.key.password") or values.get("ssl.keystore.password")
    algorithm = values.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in {"", "https"}:
        raise UsageError(
            f"ssl.endpoint.identification.algorithm is {algorithm!r}; expected https, or nothing to accept any host name"
        )
    context = make_tls_context(
        ca=ca, certificate=certificate, key=key, password=password, verify_hostname=bool(algorithm)
    )
    _limit_versions(context, values)
    consumer["ssl_context"] = context
    for name in ("ssl.enabled.protocols", "ssl.protocol", "ssl.endpoint.identification.algorithm"):
        if name in values:
            spark[name] = values[name]
    if ca is not None:
        spark |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca.text}
    if certificate is not None:
        spark |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate.text}
        spark["ssl.keystore.key"] = (key or certificate).text
        if password is not None:
            spark["ssl.key.password"] = password


def _find_pem(values: Mapping[str, str], store: str, text: str, file: str) -> Pem | None:
    """Return what a PEM store holds: as text, in a file of Java's kind, or in a file of librdkafka's kind."""
    location, kind = f"{store}.location", values.get(f"{store}.type", "").upper()
    given = [name for name in (text, location, file) if name in values]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both say the same thing; leave one of them out")
    if not given:
        return None
    if kind not in {"", "PEM"}:
        path = values.get(location, "store.jks")
        raise UsageError(f"{store}.type is {kind}; {how_to_convert(path)}. Then: {store}.type=PEM, {location}=the file")
    if given[0] == text:
        return Pem(values[text], text)
    return read_pem(values[given[0]], given[0])


def _limit_versions(context: ssl.SSLContext, values: Mapping[str, str]) -> None:
    named = [part.strip() for part in values.get("ssl.enabled.protocols", "").split(",") if part.strip()]
    wrong = next((part for part in named if part not in _TLS_VERSIONS), None)
    if wrong is not None:
        raise UsageError(f"ssl.enabled.protocols has {wrong!r}; expected {' or '.join(_TLS_VERSIONS)}")
    if named:
        context.minimum_version = min(_TLS_VERSIONS[part] for part in named)
        context.maximum_version = max(_TLS_VERSIONS[part] for part in named)


# SASL


def _add_login(values: Mapping[str, str], consumer: dict[str, Any], spark: dict[str, str]) -> None:
    mechanism = values.get("sasl.mechanism")
    if mechanism is None:
        raise UsageError(f"sasl.mechanism is missing; expected one of {', '.join(_MECHANISMS)}")
    if mechanism == "OAUTHBEARER":
        raise UsageError(
            "sasl.mechanism is OAUTHBEARER, for which aiokafka needs an object that brings tokens; give it in a program: "
            "aiokcc.replay(..., sasl_mechanism='OAUTHBEARER', sasl_oauth_token_provider=...)"
        )
    if mechanism not in _MECHANISMS:
        raise UsageError(f"sasl.mechanism is {mechanism!r}; expected one of {', '.join(_MECHANISMS)}")
    consumer["sasl_mechanism"] = spark["sasl.mechanism"] = mechanism
    login = read_login(values["sasl.jaas.config"]) if "sasl.jaas.config" in values else {}
    if mechanism == "GSSAPI":
        name = values.get("sasl.kerberos.service.name", login.get("serviceName"))
        if name is not None:
            consumer["sasl_kerberos_service_name"] = spark["sasl.kerberos.service.name"] = name
        if "sasl.jaas.config" in values:
            spark["sasl.jaas.config"] = values["sasl.jaas.config"]
        return
    user = values.get("sasl.username") or login.get("username")
    password = values.get("sasl.password") or login.get("password")
    if not user or not password:
        lacks = "sasl.password" if user else "sasl.username"
        raise UsageError(
            f"{mechanism} needs a user and a password: give sasl.jaas.config, or sasl.username and sasl.password; "
            f"{lacks} is missing"
        )
    user, password = (read_secret(text, "sasl.jaas.config") for text in (user, password))
    remember_secret(password)
    consumer |= {"sasl_plain_username": user, "sasl_plain_password": password}
    spark["sasl.jaas.config"] = login_line(mechanism, user, password)
