"""The version, in one place that every part may import without importing the public API."""

__version__ = "0.1.0"
