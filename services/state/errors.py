"""What can go wrong with the state store; training goes on whatever it is."""

from __future__ import annotations


class StateStoreUnavailableError(RuntimeError):
    """The store did not do what it was asked.

    Attributes:
        url: of the store, without a password.
        key: what was read or written; ``None`` where it is not about one key.
        cause: in words.
    """

    def __init__(self, url: str, key: str | None, cause: str) -> None:
        self.url, self.key, self.cause = url, key, cause
        what = f"{key} in the state store {url}" if key else f"the state store {url}"
        super().__init__(
            f"{what} is unavailable: {cause}. Training goes on without it; state.redis_url names a Redis or Valkey "
            "server, null starts a private one"
        )

    def __reduce__(self) -> tuple[type[StateStoreUnavailableError], tuple[str, str | None, str]]:
        return type(self), (self.url, self.key, self.cause)


class StateDirectoryInUseError(RuntimeError):
    """Another process has a private server on this directory; two would write one append-only file."""


class EtagMismatchError(RuntimeError):
    """A record is not what its writer had read: somebody else changed, made or removed it.

    Attributes:
        key: of the record.
        expected: the etag that was read; ``None``: there was no record.
        found: the etag now; ``None``: there is no record.
    """

    def __init__(self, key: str, expected: str | None, found: str | None) -> None:
        self.key, self.expected, self.found = key, expected, found
        super().__init__(
            f"{key} was changed by somebody else: expected etag {expected or 'of no record'}, found "
            f"{found or 'no record'}; read it again, and decide again"
        )

    def __reduce__(self) -> tuple[type[EtagMismatchError], tuple[str, str | None, str | None]]:
        return type(self), (self.key, self.expected, self.found)


class UnreadableRecordError(ValueError):
    """What is stored under a key is not a record of this version; it is left as it is."""
