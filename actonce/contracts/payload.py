"""The payload digest: what exactly was asked, independent of rendering.

Digest `d1` = SHA-256 over the RFC 8785 form of {v, tool, destination, action, account, fields}. `fields` are
the declared business fields only; timestamps, nonces and prose are not among them. The acting account is in,
its credential is not. Money is integer minor units: floats are refused, not rounded. Stable across Temporal's
JSON converter and PostgreSQL's JSONB, which both keep what is allowed here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

from actonce.contracts.errors import PayloadError

DIGEST_VERSION = "d1"
PAYLOAD_BYTES_MAX = 64 * 1024  # an operation carries facts; documents go by reference
NATURAL_KEY_BYTES_MAX = 512  # it is unique by an index, which carries no long values
_INT_MAX = 2**53 - 1  # RFC 8785 / I-JSON: beyond it numbers are not exact everywhere
_DEPTH_MAX = 32
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")  # NUL, half a surrogate pair
_STORED_DEPTH_MAX = 64  # what is asked around the business fields


def business_fields(payload: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the declared fields of a payload; a missing one is an error, others are left out.

    A name that ends in `?` is optional and left out when absent.
    """
    chosen: dict[str, Any] = {}
    for name in names:
        key = name.removesuffix("?")
        if key in payload:
            chosen[key] = payload[key]
        elif not name.endswith("?"):
            raise PayloadError(f"business field {key!r} is missing; declared fields are {list(names)}")
    return chosen


def payload_digest(*, tool: str, destination: str, action: str, account: str, fields: Mapping[str, Any]) -> str:
    """Return `d1:` + 64 hex digits. Raises PayloadError for floats, NaN, NUL, big integers and oversize."""
    _check(fields, "payload", 0)
    body: dict[str, Any] = {
        "v": 1,
        "tool": tool,
        "destination": destination,
        "action": action,
        "account": account,
        "fields": dict(fields),
    }
    try:
        canonical = rfc8785.dumps(body)
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise PayloadError(f"payload of {tool} has no canonical form: {error}") from error
    if len(canonical) > PAYLOAD_BYTES_MAX:
        raise PayloadError(
            f"payload of {tool} is {len(canonical)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed; "
            "store the document and pass a reference with its digest"
        )
    return f"{DIGEST_VERSION}:{hashlib.sha256(canonical).hexdigest()}"


def natural_key(fields: Mapping[str, Any]) -> str:
    """A natural effect key: the canonical JSON of its fields, or `n1:` + 64 hex digits of it where that is long.

    Raises PayloadError for what has no canonical form.
    """
    _check(fields, "payload", 0)
    try:
        canonical = rfc8785.dumps(dict(fields))
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise PayloadError(f"the natural effect key has no canonical form: {error}") from error
    if len(canonical) <= NATURAL_KEY_BYTES_MAX:
        return canonical.decode()
    return f"n1:{hashlib.sha256(canonical).hexdigest()}"


def check_storable(value: Any, path: str, depth: int = 0) -> None:
    """Refuse what the ledger cannot keep exactly, wherever it is. Raises PayloadError; nothing is sent then.

    The digest covers the business fields only; the ledger keeps everything that is asked.
    """
    if depth > _STORED_DEPTH_MAX:
        raise PayloadError(f"{path[:200]}… is nested deeper than {_STORED_DEPTH_MAX}")
    if isinstance(value, str):
        if _NOT_STORABLE.search(value):
            raise PayloadError(f"{path} contains NUL or half a surrogate pair, which the ledger cannot keep")
    elif isinstance(value, float) and not math.isfinite(value):
        raise PayloadError(f"{path} = {value!r} is no number that JSON can carry")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_storable(key, f"{path} key", depth + 1)
            check_storable(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_storable(item, f"{path}[{index}]", depth + 1)


def _check(value: Any, path: str, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise PayloadError(f"{path} is nested deeper than {_DEPTH_MAX}")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if "\x00" in value:
            raise PayloadError(f"{path} contains a NUL character, which JSONB cannot keep")
        return
    if isinstance(value, int):
        if abs(value) > _INT_MAX:
            raise PayloadError(f"{path} = {value} is beyond ±(2^53-1); pass it as a string")
        return
    if isinstance(value, float):
        raise PayloadError(f"{path} = {value!r} is a float; money is integer minor units, ratios are strings")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PayloadError(f"{path} has the key {key!r}, which is not text")
            _check(key, f"{path} key", depth + 1)
            _check(item, f"{path}.{key}", depth + 1)
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
        return
    raise PayloadError(f"{path} is a {type(value).__name__}; allowed are text, integers, booleans, null, lists, maps")
