"""Agent tasks on Temporal that act once, and can prove it."""

__version__ = "0.1.0"
