"""Makes what operators of NATS make with their tools: certificates, and accounts as signed tokens."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
# Python 3.13 and newer refuse an authority that does not say that it may sign certificates.
AUTHORITY_USAGE = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that only the tests trust."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, folder: Path) -> Authority:
        folder.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("an authority", key.public_key(), "an authority", key, is_authority=True)
        (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, certificate)

    @property
    def path(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self, name: str, *addresses: str) -> tuple[str, str]:
        """Returns the file of a new certificate, and the file of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key.public_key(), "an authority", self.key, addresses)
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return str(paths[0]), str(paths[1])


def _certificate(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    addresses: tuple[str, ...] = (),
    *,
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    named = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(AUTHORITY_USAGE, critical=True)
    if named:
        builder = builder.add_extension(x509.SubjectAlternativeName(named), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


class Key:
    """An nkey for an operator, an account or a user."""

    def __init__(self, kind: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), kind)
        self._pair = nkeys.from_seed(bytearray(self.seed))

    @property
    def public(self) -> str:
        return str(self._pair.public_key.decode())

    def signed(self, subject: str, name: str, claims: Mapping[str, Any]) -> str:
        """A token about a key, as NATS servers read it."""
        issued = {
            "iss": self.public,
            "sub": subject,
            "name": name,
            "iat": int(time.time()),
            "jti": os.urandom(16).hex(),
        }
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**issued, "nats": {**claims, "version": 2}}]
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encoded(self._pair.sign(text.encode()))}"


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
STORAGE = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


def operator_config(creds: Path) -> str:
    """The configuration of a server whose accounts an operator signs; a user of one of them gets credentials."""
    operator, system, account, user = (
        Key(kind)
        for kind in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        )
    )
    operator_token = operator.signed(operator.public, "operator", {"type": "operator", "system_account": system.public})
    plain = {"type": "account", "limits": {**UNLIMITED, "wildcards": True}}
    stored = {"type": "account", "limits": {**UNLIMITED, **STORAGE, "wildcards": True}}
    preload = {
        system.public: operator.signed(system.public, "SYS", plain),
        account.public: operator.signed(account.public, "CONTEXTFOLD", stored),
    }
    token = account.signed(user.public, "daemon", {"type": "user", "subs": -1, "data": -1, "payload": -1})
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    preloaded = "\n".join(f"{public}: {text}" for public, text in preload.items())
    return (
        f"operator: {operator_token}\nsystem_account: {system.public}\n"
        f"resolver: MEMORY\nresolver_preload {{\n{preloaded}\n}}\n"
    )
