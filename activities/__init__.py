"""Temporal activities: thin, one function per effect or read. Everything they do is in `actonce.effects`."""
