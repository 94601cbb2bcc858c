"""The embedded vault: envelope encryption, the sealed bytes in the database and the master keys
outside it. Never keeps a secret or a data key."""

import asyncio
import os
import struct
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from trading_intents.accounts.model import SecretRef
from trading_intents.accounts.vault.master_keys import EnvironmentKeys, KeyFile, MasterKey
from trading_intents.accounts.vault.port import (
    MAX_FIELDS_BYTES,
    decode_fields,
    encode_fields,
)
from trading_intents.errors import SecretUnreadable
from trading_intents.secret import Secret

# A sealed value: 1  format 4  version of the master key, big-endian 60  data key:  nonce 12,
#    AES-256-GCM under the master key 32, tag 16; bound to the row and the version 28+  fields:
#    nonce 12, AES-256-GCM under the data key   n, tag 16; bound to the row The fields are not bound
#    to the version by themselves, as re-wrapping leaves them alone: their data key is.
FORMAT = 1
HEADER = struct.Struct(">BI")
NONCE_BYTES = 12
TAG_BYTES = 16
DATA_KEY_BITS = 256
BOX_BYTES = NONCE_BYTES + TAG_BYTES
FIELDS_AT = HEADER.size + BOX_BYTES + DATA_KEY_BITS // 8
MAX_SEALED_BYTES = FIELDS_AT + BOX_BYTES + MAX_FIELDS_BYTES


class EmbeddedVault:
    def __init__(self, keys: EnvironmentKeys | KeyFile) -> None:
        self._keys = keys

    async def seal(self, ref: SecretRef, secrets: Mapping[str, Secret]) -> bytes:
        fields = encode_fields(secrets)
        data_key = AESGCM.generate_key(DATA_KEY_BITS)
        return _wrap(self._keys.newest(), ref, data_key) + _encrypt(
            data_key, fields, _fields_context(ref)
        )

    async def open(self, ref: SecretRef, sealed: bytes) -> dict[str, Secret]:
        data_key = self._unwrap(ref, sealed)
        return decode_fields(_decrypt(data_key, sealed[FIELDS_AT:], _fields_context(ref)))

    async def forget(self, ref: SecretRef, sealed: bytes) -> None:
        """Nothing is kept elsewhere."""

    def key_version(self, sealed: bytes) -> int:
        return _read_version(sealed)

    def key_versions(self) -> tuple[int, ...]:
        """The master keys that there are, ascending: the last one seals."""
        return self._keys.versions()

    async def add_master_key(self) -> int:
        """Make the key that seals from now on, in every process, and return its version."""
        return await asyncio.to_thread(self._keys.add)

    async def rewrap(self, ref: SecretRef, sealed: bytes) -> bytes:
        """The same secret under the newest master key; the same bytes when it already is."""
        newest = self._keys.newest()
        if _read_version(sealed) == newest.version:
            return sealed
        return _wrap(newest, ref, self._unwrap(ref, sealed)) + sealed[FIELDS_AT:]

    async def retire(self, version: int) -> bool:
        """Drop a master key that no row uses. False if it must stay: it seals, or did until a
        moment ago."""
        return await asyncio.to_thread(self._keys.retire, version)

    def _unwrap(self, ref: SecretRef, sealed: bytes) -> bytes:
        master = self._keys.find(_read_version(sealed))
        if master is None:
            raise SecretUnreadable("its master key is not here")
        return _decrypt(
            master.key, sealed[HEADER.size : FIELDS_AT], _key_context(ref, master.version)
        )


def _read_version(sealed: bytes) -> int:
    if not FIELDS_AT + BOX_BYTES <= len(sealed) <= MAX_SEALED_BYTES or sealed[0] != FORMAT:
        raise SecretUnreadable("not sealed by the embedded vault")
    version: int = HEADER.unpack_from(sealed)[1]
    return version


def _wrap(master: MasterKey, ref: SecretRef, data_key: bytes) -> bytes:
    box = _encrypt(master.key, data_key, _key_context(ref, master.version))
    return HEADER.pack(FORMAT, master.version) + box


def _encrypt(key: bytes, plain: bytes, context: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, context)


def _decrypt(key: bytes, box: bytes, context: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], context)
    except InvalidTag:
        raise SecretUnreadable(
            "changed, sealed for another row, or under another key of that version"
        ) from None


def _key_context(ref: SecretRef, version: int) -> bytes:
    return b"trading-intents vault key" + HEADER.pack(FORMAT, version) + _row(ref)


def _fields_context(ref: SecretRef) -> bytes:
    return b"trading-intents vault fields" + bytes([FORMAT]) + _row(ref)


def _row(ref: SecretRef) -> bytes:
    return ref.organization_id.bytes + ref.account_id.bytes + ref.credential_id.bytes
