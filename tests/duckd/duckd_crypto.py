"""The arithmetic of handshake and seals by the `cryptography` package: the tests' independent
oracle for what BearSSL does in duckd."""

from __future__ import annotations

import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAC_AT = 40  # in the packet header


def gmac(key: bytes, counter: int, tag: int, packet: bytes) -> bytes:
    nonce = struct.pack("<QI", counter, tag)
    blank = packet[:MAC_AT] + bytes(16) + packet[MAC_AT + 16 :]
    return AESGCM(key).encrypt(nonce, b"", blank)


class FleetKey:
    """The private key of a fleet, and what duckd gets of it."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        point = self.private.public_key()
        self.public = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def sign(self, digest: bytes) -> bytes:
        signature = self.private.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        r, s = decode_dss_signature(signature)
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def derive(salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    return HKDF(hashes.SHA256(), size, salt, info).derive(secret)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def public_bytes(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
