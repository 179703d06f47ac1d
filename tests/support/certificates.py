"""Certificates for servers of tests."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address


def certificate(address: str = "") -> tuple[str, str]:
    """A new certificate that nobody knows, of an IP address where one is said, and its key (PEM)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "envbuild")])
    # Clocks of nodes may be off by years.
    since, until = (datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 2100))
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), since, until)
    if address:
        made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
    signed = made.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
