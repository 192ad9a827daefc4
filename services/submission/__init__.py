"""Submitting a run to a Ray cluster's job server."""
