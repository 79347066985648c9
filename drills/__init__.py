"""Failure drills: they break a real deployment on purpose and judge what happened from outside of it."""
