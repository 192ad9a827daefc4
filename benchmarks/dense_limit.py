"""The limit: the same dense part alone, on as many threads, without data, embeddings or synchronization."""

from __future__ import annotations

import threading
import time

import torch

from services.allocator import keep_freed_memory
from services.config import RunConfig
from trainer.data.batch import Batch
from trainer.dense_optimizer import DenseOptimizer
from trainer.dense_step import DenseReplica, DenseStep
from trainer.dlrm import build_dense
from trainer.flat_parameters import FlatLayout

_DENSE_FEATURES, _SPARSE_FEATURES = 13, 26
_WARMUP_STEPS = 5


def dense_limit(config: RunConfig, threads: int, samples: int) -> float:
    """Samples/s of ``threads`` Hogwild threads over one replica."""
    torch.set_num_threads(1)
    keep_freed_memory(512 << 20)  # as a trainer does

    def build() -> torch.nn.Module:
        return build_dense(config.model, _DENSE_FEATURES, _SPARSE_FEATURES, 0)

    layout, optimizer = FlatLayout.of(build()), DenseOptimizer(config.dense)
    weights = torch.zeros(layout.numel)
    layout.copy_from(build(), weights)
    replica = DenseReplica(layout, weights, torch.zeros(optimizer.state_numel(layout.numel)), optimizer, build)
    batch_size = config.train.batch_size
    steps = max(10, samples // batch_size // threads)
    ready = threading.Barrier(threads + 1)

    def work() -> None:
        torch.set_num_threads(1)
        step = DenseStep(replica, config.train.precision)
        dense, labels = torch.rand(batch_size, _DENSE_FEATURES), torch.randint(0, 2, (batch_size,)).float()
        dtype = torch.bfloat16 if config.cluster.wire == "bf16" else torch.float32
        pooled = torch.rand(batch_size, _SPARSE_FEATURES, config.model.embedding_dim).to(dtype)
        batch = Batch(dense, labels, torch.zeros(0, dtype=torch.int64), None, ())
        for _ in range(_WARMUP_STEPS):
            step.train(batch, pooled, 1e-6)
        ready.wait()
        for _ in range(steps):
            step.train(batch, pooled, 1e-6)
        ready.wait()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    started = time.perf_counter()
    ready.wait()
    seconds = time.perf_counter() - started
    for worker in workers:
        worker.join()
    return threads * steps * batch_size / seconds
