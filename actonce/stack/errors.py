"""Errors of the stack. Each says the fact, the thing it is about, and the next step."""


class StackError(Exception):
    """A part of the stack could not be found, built, started, reached or stopped."""


class Missing(StackError):
    """Something that is needed is not on this machine; the message says how to get it."""
