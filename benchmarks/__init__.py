"""Measurements of the loop the user runs; each prints one JSON value."""
