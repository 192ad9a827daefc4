"""The training that a save disturbs: two Hogwild threads, each with lookups, DLRM's dense part, and updates."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.checkpoint.tables import Tables
from benchmarks.kaggle import one_hot_ids
from trainer.config import DenseConfig, ModelConfig
from trainer.data.batch import Batch
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_step import DenseReplica, DenseStep
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout

THREADS = 2
_DENSE_FEATURES = 13
_BATCHES = 16


class TrainingLoop:
    """Trains until ``stop``. Whoever holds ``lock`` has the rows to himself, as a shard between two requests."""

    def __init__(self, tables: Tables, batch_size: int) -> None:
        self._tables, self._batch_size = tables, batch_size
        features = len(tables.rows)
        model = ModelConfig(embedding_dim=tables.dim, dense_arch=(512, 256, 64, tables.dim))

        def build() -> torch.nn.Module:
            return build_dense(model, _DENSE_FEATURES, features, 0)

        layout, optimizer = FlatLayout.of(build()), DenseOptimizer(DenseConfig())
        weights = torch.zeros(layout.numel)
        layout.copy_from(build(), weights)
        self._replica = DenseReplica(
            layout, weights, torch.zeros(optimizer.state_numel(layout.numel)), optimizer, build
        )
        random = np.random.default_rng(0)
        self._ids = [one_hot_ids(random, tables.rows, batch_size) for _ in range(_BATCHES)]
        self._offsets = torch.arange(batch_size * features + 1, dtype=torch.int64)
        self.lock = threading.Lock()
        self.before_update: Callable[[int, Tensor], None] | None = None
        """Of a consistent save; called with (index of the table, ids) while ``lock`` is held."""
        self._times: list[list[float]] = [[] for _ in range(THREADS)]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(THREADS)]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def samples(self, begin: float, end: float) -> float:
        """Trained between two instants of ``perf_counter``; a step that an instant falls into counts in part."""
        return sum(self._steps_until(times, end) - self._steps_until(times, begin) for times in self._times) * (
            self._batch_size
        )

    @staticmethod
    def _steps_until(times: list[float], instant: float) -> float:
        done = bisect_right(times, instant)
        if not 0 < done < len(times):
            raise RuntimeError("the loop was not training at that time")
        before, after = times[done - 1], times[done]
        return done + (instant - before) / (after - before)

    def _work(self, index: int) -> None:
        torch.set_num_threads(1)
        step, batch_size = DenseStep(self._replica, "bf16"), self._batch_size
        table, width = self._tables.table, len(self._tables.rows)
        generator = torch.Generator().manual_seed(index)
        dense = torch.rand(batch_size, _DENSE_FEATURES, generator=generator)
        labels = torch.randint(0, 2, (batch_size,), generator=generator).float()
        batch = Batch(dense, labels, torch.zeros(0, dtype=torch.int64), None, ())
        for number in itertools.count(index):
            if self._stop.is_set():
                return
            ids = self._ids[number % _BATCHES]
            with self.lock:
                pooled = table.lookup(ids, self._offsets)
            grad = step.train(batch, pooled.view(batch_size, width, -1), 1e-6).embedding_grad
            assert grad is not None
            with self.lock:
                if self.before_update is not None:
                    for piece in range(width):
                        self.before_update(piece, ids[piece * batch_size : (piece + 1) * batch_size])
                table.update(grad.view(batch_size, -1), ids, self._offsets, 1e-6)
            self._times[index].append(time.perf_counter())
