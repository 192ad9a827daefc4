"""A bounded queue that knows when its producers are done, have failed, or are no longer wanted."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """Many producers, many consumers."""

    def __init__(self, capacity: int, producers: int) -> None:
        """Holds ``capacity`` items; ends when all ``producers`` have called ``finish``."""
        self._capacity = capacity
        self._producers = producers
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        lock = threading.Lock()
        self._readable = threading.Condition(lock)
        self._writable = threading.Condition(lock)

    @property
    def closed(self) -> bool:
        """True once nobody wants items any more."""
        return self._closed

    def put(self, item: T) -> bool:
        """Waits for room. False: the channel was closed or has failed, stop producing."""
        with self._writable:
            self._writable.wait_for(lambda: self._closed or len(self._items) < self._capacity)
            if self._closed:
                return False
            self._items.append(item)
            self._readable.notify()
            return True

    def get(self, block: bool = True) -> T | None:
        """The next item; ``None`` for every consumer once producers are done and all is handed out, or after close.

        With ``block=False`` ``None`` also means that there is no item yet.

        Raises:
            BaseException: what a producer failed with, in every consumer and at once; items left over are dropped.
        """
        with self._readable:
            if block:
                self._readable.wait_for(lambda: bool(self._items) or self._closed or self._producers == 0)
            if self._error is not None:
                raise self._error
            if not self._items:
                return None
            item = self._items.popleft()
            self._writable.notify()
            return item

    def finish(self) -> None:
        """One producer has nothing more to put."""
        with self._readable:
            self._producers -= 1
            self._readable.notify_all()

    def fail(self, error: BaseException) -> None:
        """Closes with an error; the first one counts."""
        with self._readable:
            if self._error is None and not self._closed:
                self._error = error
        self.close()

    def close(self) -> None:
        """Wakes everybody and drops what is queued."""
        with self._readable:
            self._closed = True
            self._items.clear()
            self._readable.notify_all()
            self._writable.notify_all()
