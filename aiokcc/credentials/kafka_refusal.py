"""Finds out why no broker accepts our connection. aiokafka only logs the reason, and raises that it could not bootstrap.

It makes one more connection in the way aiokafka does, and explains the error. Otherwise a wrong password, a mechanism that the
broker does not have, and a listener that speaks another protocol would all look like "no broker there".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiokafka import errors
from aiokafka.client import collect_hosts
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from aiokcc.credentials.kafka_client import CONNECTION_SETTINGS
from aiokcc.credentials.tls import explain_tls_error

__all__ = ["NOT_ALLOWED", "Refusal", "describe_denial", "find_refusal"]

NOT_ALLOWED: Final = (
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TopicAuthorizationFailedError,
)
"""The errors by which a broker says that an ACL is missing."""
_FINAL: Final = (
    errors.IllegalSaslStateError,
    errors.UnsupportedSaslMechanismError,
    errors.SaslAuthenticationFailed,
    errors.AuthenticationMethodNotSupported,
)


class Refusal(NamedTuple):
    """A broker that does not let us connect, and its reason."""

    text: str
    is_final: bool
    """True if to try again with the same settings would not help."""


async def find_refusal(servers: str, settings: Mapping[str, Any], timeout: float) -> Refusal | None:
    """Return why a broker at one of these servers refuses us; None if no broker is there. Raises nothing but cancellation.

    ``settings`` are those of an aiokafka client; ``timeout`` is for each server.
    """
    wanted = {name: settings[name] for name in CONNECTION_SETTINGS if settings.get(name) is not None}
    for host, port, _ in collect_hosts(servers):
        try:
            async with asyncio.timeout(timeout):
                reason = await _try_connection(host, port, wanted)
        except TimeoutError:
            continue
        if reason is not None:
            return Refusal(f"{host}:{port} {reason.text}", reason.is_final)
    return None


async def _try_connection(host: str, port: int, settings: Mapping[str, Any]) -> Refusal | None:
    protocol = settings.get("security_protocol", "PLAINTEXT")
    try:
        connection = await create_conn(host, port, **settings)
    except socket.gaierror:
        return Refusal("is not a name that can be looked up", is_final=False)
    except ssl.SSLError as error:
        return Refusal(f"{explain_tls_error(error)} (security_protocol is {protocol})", is_final=False)
    except ConnectionResetError:
        return Refusal(f"closed the connection; is its listener one for security_protocol={protocol}?", is_final=False)
    except OSError:
        return None
    except errors.KafkaError as error:
        return Refusal(_explain(error, protocol, settings), isinstance(error, _FINAL))
    try:
        await connection.send(MetadataRequest([]))
    except errors.KafkaError as error:
        return Refusal(_explain(error, protocol, settings), isinstance(error, _FINAL))
    finally:
        connection.close()
    return None  # it answers now: the problem is over


def _explain(error: errors.KafkaError, protocol: str, settings: Mapping[str, Any]) -> str:
    mechanism, user = settings.get("sasl_mechanism", "PLAIN"), settings.get("sasl_plain_username")
    match error:
        case errors.IllegalSaslStateError():
            plain = protocol.removeprefix("SASL_")
            return f"does not ask for SASL there, but security_protocol is {protocol}; try security_protocol={plain}"
        case errors.UnsupportedSaslMechanismError():
            return f"does not accept sasl_mechanism={mechanism}; use one that the broker has enabled"
        case errors.SaslAuthenticationFailed() | errors.AuthenticationMethodNotSupported():
            told = str(error).rpartition("SaslAuthenticationFailed: ")[2]
            return f"refuses the credentials of {user!r} by {mechanism}: {told}"
        case errors.KafkaConnectionError() if protocol == "SSL":
            return (
                "closed the connection after the TLS handshake; does it ask for a client's certificate that was not given "
                "(ssl.keystore.location), or refuse the one that was? Or its listener needs SASL_SSL and credentials"
            )
        case errors.KafkaConnectionError() if not protocol.startswith("SASL_"):
            return (
                f"closed the connection when it was asked something; security_protocol is {protocol}, "
                f"its listener may need SASL_{protocol} and credentials, or TLS, or its Kafka is older than 0.11"
            )
        case errors.KafkaConnectionError():
            return (
                f"closed the connection while we authenticated by {mechanism}; is security_protocol={protocol} right?"
            )
    return f"refuses us: {error}"


def describe_denial(error: errors.KafkaError) -> str:
    """Return which ACL is missing, for an error by which the broker says that one is."""
    where = error.args[0] if error.args else ""
    if isinstance(where, str):  # the admin client makes a sentence of the group
        where = where.removeprefix("Unable to get coordinator id for ")
    names = ", ".join(map(repr, sorted(where))) if isinstance(where, set | frozenset | list | tuple) else repr(where)
    match error:
        case errors.TopicAuthorizationFailedError():
            return f"it needs an ACL with Read on the topic{f' {names}' if where else ''}"
        case errors.GroupAuthorizationFailedError():
            return f"it needs an ACL with Read on the group{f' {names}' if where else ''}"
    return "it needs an ACL on the cluster"


class _HideCredentials(logging.Filter):
    """Keeps passwords out of the log: at DEBUG aiokafka logs every request, also the one that carries the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace requests and answers of the authentication by their names."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                type(arg).__name__ if type(arg).__name__.startswith("SaslAuthenticate") else arg for arg in record.args
            )
        return True


logging.getLogger("aiokafka.conn").addFilter(_HideCredentials())
