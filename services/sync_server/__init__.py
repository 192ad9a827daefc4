"""The sync server: the central dense copy of centralized algorithms."""
