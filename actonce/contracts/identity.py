"""operation_id: who issues it, what it is made of, and how a destination's key carries it.

An operation_id is derived from tenant + task id + step name + iteration and from nothing else, so it is the
same after a retry, reset, continue-as-new, terminate + start again and restore. It never contains a run id,
an attempt number, a clock, a random number or anything a model wrote.
"""

from __future__ import annotations

import base64
import hashlib
import re
import string
from dataclasses import dataclass

import rfc8785

from actonce.contracts.errors import KeyNotMappable, PayloadError

ID_VERSION = "op1"
_DIGEST_BITS = 160  # 2**80 operations before a collision becomes likely
GENERATIONS_MAX = 256  # cancelled keys of one operation; one byte in a mapped key
_NAME_CHARS_MAX = 400

_PLAIN = re.compile(rf"({ID_VERSION}_[a-z2-7]{{32}})(?:/[0-9]{{1,3}})?")
_VERBATIM = frozenset(string.ascii_lowercase + string.digits + "_/")


def derive_operation_id(tenant: str, task_id: str, step: str, iteration: int) -> str:
    """Return `op1_` + 32 characters [a-z2-7], the same for the same four parts, always.

    Raises PayloadError when a part is empty, too long or not text, or the iteration is negative.
    """
    for name, value in (("tenant", tenant), ("task_id", task_id), ("step", step)):
        if not isinstance(value, str) or not value or len(value) > _NAME_CHARS_MAX:
            raise PayloadError(
                f"{name} must be 1 to {_NAME_CHARS_MAX} characters, got {value!r}; name the step and try again"
            )
    if isinstance(iteration, bool) or not isinstance(iteration, int) or iteration < 0:
        raise PayloadError(f"iteration must be an integer ≥ 0, got {iteration!r}")
    try:
        canonical = rfc8785.dumps([ID_VERSION, tenant, task_id, step, iteration])
    except (rfc8785.CanonicalizationError, UnicodeError) as error:
        raise PayloadError(f"operation_id of step {step!r} cannot be derived: {error}") from error
    digest = hashlib.sha256(canonical).digest()[: _DIGEST_BITS // 8]
    return f"{ID_VERSION}_{base64.b32encode(digest).decode('ascii').lower()}"


@dataclass(frozen=True, slots=True)
class OperationKey:
    """The identity of an operation: one operation_id at two destinations is two operations."""

    tenant: str
    destination: str
    action: str
    operation_id: str

    def __str__(self) -> str:
        return f"{self.operation_id} ({self.action} at {self.destination} for {self.tenant})"


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """What a destination accepts as a key: its alphabet and the length limits in characters."""

    alphabet: str = string.ascii_lowercase + string.digits + "_/-"
    length_max: int = 255
    length_min: int = 1


def wire_key(operation_id: str, generation: int, form: KeyFormat) -> str:
    """Map an operation_id (and the generation of its key) to a destination's key, injectively.

    Where the alphabet and length allow it the key is the operation_id itself (`/N` appended for generation
    N > 0); otherwise it is the same number written in the destination's alphabet with a fixed length.
    Raises KeyNotMappable before any call when the format is too small to carry it.
    """
    if not 0 <= generation < GENERATIONS_MAX:
        raise KeyNotMappable(f"{operation_id}: generation {generation} is outside 0..{GENERATIONS_MAX - 1}; hold it")
    alphabet = "".join(dict.fromkeys(form.alphabet))
    plain = operation_id if generation == 0 else f"{operation_id}/{generation}"
    longest = len(operation_id) + len(f"/{GENERATIONS_MAX - 1}")
    if set(alphabet) >= _VERBATIM and form.length_min <= len(operation_id) and longest <= form.length_max:
        return plain
    return _encode(operation_id, generation, alphabet, form)


def operation_id_of(key: str, form: KeyFormat) -> str | None:
    """The operation_id that a destination's key carries, of whatever generation; None for what is no key of ours."""
    plain = _PLAIN.fullmatch(key)
    if plain is not None:
        return plain[1]
    alphabet = "".join(dict.fromkeys(form.alphabet))
    if len(alphabet) < 2 or not set(key) <= set(alphabet):
        return None
    number = 0
    for character in key:
        number = number * len(alphabet) + alphabet.index(character)
    generation, body = number >> _DIGEST_BITS, number & ((1 << _DIGEST_BITS) - 1)
    if not 0 <= generation < GENERATIONS_MAX:
        return None
    found = f"{ID_VERSION}_{base64.b32encode(body.to_bytes(_DIGEST_BITS // 8, 'big')).decode('ascii').lower()}"
    try:
        return found if wire_key(found, generation, form) == key else None
    except KeyNotMappable:
        return None


def _encode(operation_id: str, generation: int, alphabet: str, form: KeyFormat) -> str:
    version, _, body = operation_id.partition("_")
    if version != ID_VERSION or len(body) != 32:
        raise KeyNotMappable(f"{operation_id} is not an {ID_VERSION} id; derive it with derive_operation_id")
    number = int.from_bytes(base64.b32decode(body.upper()), "big") | generation << _DIGEST_BITS
    base, space = len(alphabet), 1 << (_DIGEST_BITS + 8)
    if base < 2:
        raise KeyNotMappable(f"{operation_id}: an alphabet of {base} character(s) carries nothing")
    length = 0
    while base**length < space:
        length += 1
    length = max(length, form.length_min)
    if length > form.length_max:
        raise KeyNotMappable(
            f"{operation_id} needs {length} characters of an alphabet of {base}, the destination allows "
            f"{form.length_max}; register it without keys"
        )
    digits = []
    for _ in range(length):
        number, rest = divmod(number, base)
        digits.append(alphabet[rest])
    return "".join(reversed(digits))
