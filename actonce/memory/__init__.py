"""What tasks remember: PostgreSQL with pgvector, whose `empty` is proven and whose silence is said to be silence."""

from actonce.memory.embedding import Embedder, HashingEmbedder, embedder_named
from actonce.memory.store import Memory

__all__ = ["Embedder", "HashingEmbedder", "Memory", "embedder_named"]
