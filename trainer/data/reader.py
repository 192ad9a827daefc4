"""Reader threads: lease, read, encode, cut into batches, ahead of the Hogwild threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from trainer.data.assembler import BatchAssembler
from trainer.data.batch import Batch
from trainer.data.block import RejectedLine
from trainer.data.channel import Channel
from trainer.data.dataset import Dataset
from trainer.data.encoder import FeatureEncoders
from trainer.data.lease_source import Done, LeaseSource, Signal

_BLOCK_ROWS: Final = 4096
"""Input rows decoded at once: amortizes calls, yet what they touch stays in a core's cache."""


class BatchReader:
    """Yields batches of exactly ``batch_size`` samples; smaller ones only at a drain, a change of purpose and the end.

    Every leased input row, rejected ones included, is covered by exactly one span of one batch. The order of rows is
    kept within a reader thread, not between several.
    """

    def __init__(
        self,
        dataset: Dataset,
        encoders: FeatureEncoders,
        source: LeaseSource,
        batch_size: int,
        threads: int = 1,
        prefetch: int = 8,
        on_rejected: Callable[[list[RejectedLine]], None] | None = None,
    ) -> None:
        """Starts ``threads`` threads that keep up to ``prefetch`` batches each ready.

        Args:
            dataset: what leases refer to.
            encoders: for its sparse features.
            source: gives out leases.
            batch_size: samples per batch B.
            threads: reader threads.
            prefetch: batches kept ready per thread.
            on_rejected: is told of quarantined lines, one call at a time, from reader threads, before the batch that
                answers for them; what it raises ends the reader.
        """
        self._dataset = dataset
        self._encoders = encoders
        self._source = source
        self._batch_size = batch_size
        self._block_rows = max(1, _BLOCK_ROWS // batch_size) * batch_size
        self._on_rejected = on_rejected
        self._reporting = threading.Lock()
        self._channel: Channel[Batch] = Channel(threads * prefetch, threads)
        self._threads = [
            threading.Thread(target=self._run, name=f"penumbra-reader-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def get(self, block: bool = True) -> Batch | None:
        """The next batch, waiting for it; ``None`` for every caller when all work is done or the reader is closed.

        With ``block=False`` ``None`` also means that no batch is ready yet.

        Raises:
            BaseException: what a reader thread failed with, in every caller.
        """
        return self._channel.get(block)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stops the threads, waits up to ``timeout_s``; a thread inside ``source.next()`` ends when that returns."""
        self._channel.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            self._produce(BatchAssembler(self._encoders, self._batch_size))
        except BaseException as error:  # handed to the consumers, who cannot see this thread
            self._channel.fail(error)
        finally:
            self._channel.finish()

    def _produce(self, assembler: BatchAssembler) -> None:
        while not self._channel.closed:
            lease = self._source.next()
            if isinstance(lease, Signal):
                if not all(map(self._channel.put, assembler.flush())) or lease is Done:
                    return
                continue
            for block in self._dataset.read(lease.split, lease.ranges, self._block_rows):
                if block.rejected and self._on_rejected is not None:
                    with self._reporting:
                        self._on_rejected(block.rejected)
                if not all(map(self._channel.put, assembler.add(lease, block))):
                    return
