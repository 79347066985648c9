"""The drills, one module each."""
