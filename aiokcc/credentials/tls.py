"""Makes TLS contexts from PEM files or texts, and explains why a TLS handshake failed.

Python's own errors name neither the file nor the remedy: a missing file is ``[Errno 2]`` without a name, a Java key store
is ``NO_START_LINE``. So every part is looked at before OpenSSL gets it. An encrypted key without a password would make OpenSSL
ask for one on the terminal; here it is an error.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokcc.errors import UsageError

__all__ = ["Pem", "explain_tls_error", "make_tls_context", "read_pem"]

_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
_KEY: Final = "PRIVATE KEY-----"
_JKS: Final = b"\xfe\xed\xfe\xed"
_DER: Final = b"\x30"  # also the first byte of PKCS#12
_VERIFY_EXPIRED, _VERIFY_EARLY = 10, 9
_VERIFY_NAME: Final = {62, 64}
_VERIFY_CHAIN: Final = {2, 18, 19, 20, 21}


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text, and where it comes from: the name of the setting, and the file if it is in one."""

    text: str
    source: str

    def __repr__(self) -> str:
        return f"<Pem {self.source}>"


def read_pem(path: str, what: str) -> Pem:
    """Return the content of a PEM file. Raises UsageError that says what is wrong and how to convert another format."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{what}: the file {path} cannot be read: {error.strerror or error}") from None
    if content.startswith(_JKS) or (content.startswith(_DER) and _looks_like_store(path)):
        raise UsageError(f"{what}: {path} is a Java key store; {how_to_convert(path)}")
    if b"-----BEGIN " not in content:
        raise UsageError(f"{what}: {path} is not in PEM format, whose first line is like '{_CERTIFICATE}'")
    return Pem(content.decode(errors="replace"), f"{what} {path}")


def how_to_convert(path: str) -> str:
    """Return the commands that turn a Java key store into PEM files."""
    stem = Path(path).stem or "store"
    convert = f"keytool -importkeystore -srckeystore {path} -destkeystore {stem}.p12 -deststoretype PKCS12"
    first = "" if path.endswith((".p12", ".pfx")) else f"{convert}, then "
    store = path if not first else f"{stem}.p12"
    return (
        f"Python needs PEM. Convert a trust store with: {first}openssl pkcs12 -in {store} -nokeys -out {stem}.pem; a key store "
        f"with: {first}openssl pkcs12 -in {store} -nodes -out {stem}.pem (the key is not encrypted then: chmod 600 {stem}.pem)"
    )


def make_tls_context(
    *,
    ca: Pem | None = None,
    certificate: Pem | None = None,
    key: Pem | None = None,
    password: str | None = None,
    verify_hostname: bool = True,
) -> ssl.SSLContext:
    """Return the context for a client. Without ``ca`` it trusts the authorities of this machine.

    :param certificate: the client's certificate and the chain above it; also the key, where ``key`` is not given
    :param password: of the key, if it is encrypted

    Raises UsageError for what OpenSSL refuses; the error names the setting and the file.
    """
    context = ssl.create_default_context()
    if ca is not None:
        _check_has(ca, _CERTIFICATE, "no certificate")
        context = ssl.create_default_context(cadata=_only_certificates(ca.text))
    if not verify_hostname:
        context.check_hostname = False
    if key is not None and certificate is None:
        raise UsageError(f"{key.source} is a key without a certificate; give both")
    if certificate is not None:
        _load_own(context, certificate, key, password)
    return context


def _load_own(context: ssl.SSLContext, certificate: Pem, key: Pem | None, password: str | None) -> None:
    _check_has(certificate, _CERTIFICATE, "no certificate")
    holder = key or certificate
    _check_has(holder, _KEY, "no private key")
    asked = False

    def tell() -> str:
        nonlocal asked
        asked = True
        return password or ""

    # OpenSSL reads a client's certificate from a file only.
    with tempfile.NamedTemporaryFile("w", prefix="aiokcc-", suffix=".pem") as file:  # readable by this user alone
        file.write(f"{certificate.text}\n{'' if key is None else key.text}\n")
        file.flush()
        _load(context, file.name, tell, lambda: asked, certificate, holder, password)


def _load(
    context: ssl.SSLContext,
    file: str,
    tell: Callable[[], str],
    was_asked: Callable[[], bool],
    certificate: Pem,
    holder: Pem,
    password: str | None,
) -> None:
    try:
        context.load_cert_chain(file, password=tell)
    except ssl.SSLError as error:
        if was_asked():
            wrong = (
                "a password is needed and none is given" if password is None else "the password is not the right one"
            )
            raise UsageError(f"{holder.source}: the key is encrypted, and {wrong}") from None
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"the key of {holder.source} does not belong to the first certificate of {certificate.source}"
            ) from None
        raise UsageError(f"{certificate.source} is refused by OpenSSL: {error.reason or error}") from None


def _check_has(pem: Pem, mark: str, lacks: str) -> None:
    if mark not in pem.text:
        raise UsageError(f"{pem.source} holds {lacks} in PEM format")


def _only_certificates(text: str) -> str:
    """Return the certificates of a PEM text; OpenSSL refuses a trust store that holds anything else, such as bag attributes."""
    end = "-----END CERTIFICATE-----"
    parts = (part.partition(end)[0] for part in text.split(_CERTIFICATE)[1:])
    return "".join(f"{_CERTIFICATE}{part}{end}\n" for part in parts)


def _looks_like_store(path: str) -> bool:
    return path.lower().endswith((".jks", ".p12", ".pfx", ".pkcs12", ".keystore", ".truststore"))


def explain_tls_error(error: ssl.SSLError) -> str:
    """Return why a handshake failed, with the remedy, as the end of a sentence about the server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == _VERIFY_EXPIRED:
            return "has a certificate that has expired; it must be renewed on the server"
        if code == _VERIFY_EARLY:
            return "has a certificate that is not valid yet; is the clock of this machine right?"
        if code in _VERIFY_NAME:
            return f"has a certificate for another name ({error.verify_message}); connect by a name that it holds"
        if code in _VERIFY_CHAIN:
            return f"has a certificate that no trusted CA has signed ({error.verify_message}); is the CA the right one?"
        return f"has a certificate that is refused: {error.verify_message}"
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    for part, text in _ALERTS.items():
        if part in reason:
            return text
    return f"does not complete the TLS handshake ({error.reason or error})"


_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "asks for a client's certificate, and none is given",
    "CERTIFICATE_EXPIRED": "refuses our certificate: it has expired",
    "UNKNOWN_CA": "refuses our certificate: the server does not trust the CA that signed it",
    "BAD_CERTIFICATE": "refuses our certificate, or asks for one and none is given",
    "CERTIFICATE_UNKNOWN": "refuses our certificate",
    "WRONG_VERSION_NUMBER": "does not speak TLS on this port",
    "RECORD_LAYER_FAILURE": "does not speak TLS on this port",
    "UNEXPECTED_EOF": "closed the connection during the TLS handshake; does it speak TLS on this port?",
    "UNSUPPORTED_PROTOCOL": "speaks none of the TLS versions that are allowed here",
    "PROTOCOL_VERSION": "speaks none of the TLS versions that are allowed here",
    "HANDSHAKE_FAILURE": "and this client have no cipher in common, or it asks for a client's certificate",
}
"""The parts of OpenSSL's reasons, and what they mean. The alerts come from the server."""
