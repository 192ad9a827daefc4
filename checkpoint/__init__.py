"""Pieces, row versions and recovery decisions on plain tensors and files. No Ray import."""
