"""Faults on purpose: what drills and tests do to a living run from outside, counted and undone."""
