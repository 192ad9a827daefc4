"""Keeper-owned shared memory: memfds with a versioned header, handed over by descriptor."""
