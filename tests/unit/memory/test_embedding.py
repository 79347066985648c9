"""The default embedder: same text, same vector; no text without a direction; lexical and nothing more."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actonce.memory.embedding import HashingEmbedder, embedder_named, unit


def distance(a: str, b: str) -> float:
    one, other = HashingEmbedder().embed(a), HashingEmbedder().embed(b)
    return 1 - sum(x * y for x, y in zip(one, other, strict=True))


@given(st.text())
def test_every_text_has_a_direction_of_length_one(text: str) -> None:
    vector = HashingEmbedder().embed(text)
    assert len(vector) == HashingEmbedder.dimension
    assert math.isclose(sum(x * x for x in vector), 1.0)
    assert vector == HashingEmbedder().embed(text)


def test_texts_that_share_words_are_near_and_synonyms_are_not() -> None:
    assert distance("refund of a vase", "REFUND of the vase") < distance("refund of a vase", "a bicycle")
    assert distance("money back", "reimbursement") > 0.9


def test_the_vector_of_a_text_never_changes() -> None:
    """What is stored was embedded by an earlier process: another vector needs another name."""
    vector = HashingEmbedder().embed("refund")
    assert [i for i, x in enumerate(vector) if x] == [0, 48] and math.isclose(abs(vector[48]), 0.99875, rel_tol=1e-4)


@pytest.mark.parametrize("vector", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_a_vector_without_a_direction_is_refused(vector: list[float]) -> None:
    with pytest.raises(ValueError, match="no direction"):
        unit(vector)


def tiny_model(folder: Path, scale: float) -> str:
    """A model of four words, made here: no download."""
    model2vec = pytest.importorskip("model2vec", reason="the extra `embeddings` is not installed")
    numpy, tokenizers = pytest.importorskip("numpy"), pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "refund": 1, "money": 2, "vase": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    vectors = (numpy.eye(4, 8) + scale).astype("float32")
    model2vec.StaticModel(vectors, tokenizer).save_pretrained(str(folder))
    return f"model2vec:{folder}"


def test_a_real_model_is_named_by_its_weights(tmp_path: Path) -> None:
    one, same = (embedder_named(tiny_model(tmp_path / name, 0.1)) for name in ("one", "same"))
    other = embedder_named(tiny_model(tmp_path / "other", 0.2))
    assert one.name == same.name != other.name and one.dimension == 8
    assert math.isclose(sum(x * x for x in one.embed("refund vase")), 1.0, rel_tol=1e-5)
    assert list(one.embed("refund vase")) == list(same.embed("refund vase"))


def test_an_embedder_is_chosen_by_name_and_an_unknown_one_is_refused() -> None:
    assert embedder_named("hashing").name == "hashing-words-v1"
    with pytest.raises(ValueError, match="no embedder"):
        embedder_named("nonsense")
