"""Turns text into vectors. `HashingEmbedder` is the offline default: lexical, deterministic, no download.

An embedder's name and dimension are recorded with the collection: vectors of two embedders cannot be compared, so a
changed one is noticed and refused. Every vector it returns must be finite and not zero (an index by cosine distance
does not hold zero vectors, so such a text would be invisible).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Protocol

DIMENSION_MAX = 2000  # what pgvector's indexes take
_WORDS = re.compile(r"\w+")


class Embedder(Protocol):
    """Same text, same vector, in every process of the deployment."""

    @property
    def name(self) -> str:
        """Names model and version: a change of either is another embedder."""

    @property
    def dimension(self) -> int: ...

    def embed(self, text: str) -> Sequence[float]:
        """May block; called in a thread."""


class HashingEmbedder:
    """Feature hashing of words: texts are near when they share words. It knows no meaning and no synonyms."""

    name = "hashing-words-v1"
    dimension = 256

    def embed(self, text: str) -> list[float]:
        vector = [0.0] * self.dimension
        vector[0] = 0.05  # of every text: a text without words, or whose words cancel out, is still not zero
        for word in _WORDS.findall(text.casefold()):
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            place = 1 + int.from_bytes(digest[:4], "big") % (self.dimension - 1)
            vector[place] += 1.0 if digest[4] & 1 else -1.0
        return unit(vector)


class Model2VecEmbedder:
    """A real model (static embeddings) from a local folder or a model hub: extra `embeddings`."""

    def __init__(self, model: str) -> None:
        """Loads the model. Raises ImportError without the extra, and what the library raises without the model."""
        from model2vec import StaticModel

        self._model = StaticModel.from_pretrained(model)
        weights = hashlib.sha256(self._model.embedding.tobytes()).hexdigest()
        self.name = f"model2vec:{weights[:16]}"  # not where it came from: another model may lie there tomorrow
        self.dimension = int(self._model.dim)

    def embed(self, text: str) -> list[float]:
        return unit([float(x) for x in self._model.encode([text])[0]])


def unit(vector: Sequence[float]) -> list[float]:
    """The vector with length one. Raises ValueError for one that has no direction."""
    length = math.sqrt(sum(x * x for x in vector))
    if not math.isfinite(length) or length == 0:
        raise ValueError("the embedding has no direction (zero or not finite), so no index could show it")
    return [x / length for x in vector]


def embedder_named(name: str) -> Embedder:
    """`hashing` (default), or `model2vec:NAME_OR_FOLDER`."""
    kind, _, rest = name.partition(":")
    if kind == "hashing" and not rest:
        return HashingEmbedder()
    if kind == "model2vec" and rest:
        return Model2VecEmbedder(rest)
    raise ValueError(f"no embedder {name!r}; use `hashing` or `model2vec:NAME_OR_FOLDER`")
