"""Certificates for tests: an authority, and what it signs for servers and clients on loopback, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate: its own and its key apart, and both together, as Java's PEM stores want them."""

    cert: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority that keeps its files in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"aiokcc tests {name}")])
        identity = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        own = (
            self._builder(self._name, self._key.public_key(), expired=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identity, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._identity = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *, expired: bool = False, address: str = "127.0.0.1", password: str | None = None
    ) -> Certificate:
        """Sign a certificate for a name, which is also the name of its files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
        signed = (
            self._builder(subject, key.public_key(), expired=expired)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(self._identity, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        cert = signed.public_bytes(serialization.Encoding.PEM)
        secret: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            secret = serialization.BestAvailableEncryption(password.encode())
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
        files = Certificate(*(self._directory / f"{name}{end}.pem" for end in ("", "-key", "-both")))
        for file, content in ((files.cert, cert), (files.key, private), (files.both, private + cert)):
            file.write_bytes(content)
        return files

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, expired: bool) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        end = now - _DAY if expired else now + _DAY
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(end - 3 * _DAY).not_valid_after(end)
