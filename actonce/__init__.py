"""Agent tasks on Temporal that act once, and can prove it."""

from actonce.version import __version__

__all__ = ["__version__"]
