"""ShardWriter: the writer thread of a shard process, its buffers and its way to the storage; started once, reused."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from checkpoint.buffers import Buffer, BufferPool
from checkpoint.retry import RetryPolicy
from checkpoint.save_file import LocalSink, ObjectSink, Sink


class WrittenFile(NamedTuple):
    """A durable file."""

    bytes: int
    checksum: str


class FileJob:
    """One file on its way through the writer thread."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.result: Future[WrittenFile] = Future()
        self.cancelled = False
        self.bytes_written = 0


class ShardWriter:
    """Writes buffers in the order in which they were handed over; the long parts hold no GIL.

    Args:
        pool: buffers to write from; a new one of default size when ``None``.
        retry: how failures of the storage are tried again.
        storage_options: given to fsspec.
    """

    def __init__(
        self,
        pool: BufferPool | None = None,
        *,
        retry: RetryPolicy | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.pool = pool or BufferPool()
        self._retry = retry or RetryPolicy()
        self._options = storage_options or {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.busy_s = 0.0
        """Seconds spent writing, over all saves."""
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def part_bytes(self, url: str) -> int | None:
        """Largest file that should be written under ``url``; ``None`` where there is no such limit."""
        return None if isinstance(fsspec.url_to_fs(url, **self._options)[0], LocalFileSystem) else ObjectSink.PART_BYTES

    def new_file(self, url: str, name: str, total_bytes: int) -> FileJob:
        """Prepare a file of ``total_bytes`` in the directory ``url``; it is created by the writer thread."""
        fs, root = fsspec.url_to_fs(url, **self._options)
        path = f"{root}/{name}"
        local = isinstance(fs, LocalFileSystem)
        return FileJob(LocalSink(path, total_bytes, self._retry) if local else ObjectSink(fs, path, self._retry))

    def submit(self, job: FileJob, buffer: Buffer, count: int, last: bool) -> None:
        """Hand over the next ``count`` bytes of a file; the buffer goes back to the pool when they are written."""
        self._queue.put(lambda: self._write(job, buffer, count, last))

    def cancel(self, job: FileJob) -> None:
        """Write no more of a file, and delete it as soon as the thread gets to it."""
        job.cancelled = True
        self._queue.put(job.sink.discard)

    def close(self) -> None:
        """End the thread after what was submitted."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            started = time.perf_counter()
            action()
            self.busy_s += time.perf_counter() - started

    def _write(self, job: FileJob, buffer: Buffer, count: int, last: bool) -> None:
        try:
            if job.cancelled or job.result.done():
                return
            job.sink.write(buffer.data, count)
            job.bytes_written += count
            if last:
                job.result.set_result(WrittenFile(*job.sink.close()))
        except Exception as error:
            job.sink.discard()
            job.result.set_exception(error)
        finally:
            self.pool.give(buffer)
