"""The peer: TorchRec DistributedModelParallel on two gloo ranks of one thread each, fed by the same reader."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from services.config import RunConfig
from services.config_file import load_config
from trainer.data.batch import Batch
from trainer.data.dataset import open_dataset
from trainer.data.encoder import build_encoders
from trainer.data.lease_source import Done, Signal
from trainer.data.reader import BatchReader
from trainer.data.split import Lease, Split

RANKS = 2
_WARMUP_STEPS = 10
_FUSED = {"exact_adagrad": "EXACT_ADAGRAD", "exact_row_wise_adagrad": "EXACT_ROWWISE_ADAGRAD"}


class _Splits:
    """A rank's share of the splits."""

    def __init__(self, splits: list[Split]) -> None:
        self._leases = iter(
            [Lease(i, split, 1, "train", ((split.row_start, split.row_end),)) for i, split in enumerate(splits)]
        )

    def next(self) -> Lease | Signal:
        return next(self._leases, Done)


def main(config_path: str, rendezvous: str, rank: int) -> None:
    """Train one epoch of this rank's half; rank 0 prints steady-state samples/s of both as JSON."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    config = load_config(config_path)
    dataset = open_dataset(config.data)
    encoders = build_encoders(dataset.schema, config.data)
    splits = dataset.plan_splits().train
    steps = min(sum(s.rows for s in splits[r::RANKS]) // config.train.batch_size for r in range(RANKS))
    reader = BatchReader(dataset, encoders, _Splits(splits[rank::RANKS]), config.train.batch_size)
    model, optimizer = _place(config, build_model(config, encoders.rows, len(dataset.schema.dense)))
    started = 0.0
    for step, batch in enumerate(_batches(reader)):
        if step == _WARMUP_STEPS:
            dist.barrier()
            started = time.perf_counter()
        if step >= steps:  # ranks must take equally many steps: their collectives wait for each other
            break
        _train(model, optimizer, batch, list(encoders.rows), config.train.precision == "bf16")
    dist.barrier()
    seconds = time.perf_counter() - started
    reader.close()
    if rank == 0:
        samples = RANKS * config.train.batch_size * (steps - _WARMUP_STEPS)
        print(json.dumps({"throughput_samples_per_s": samples / seconds, "steps": steps - _WARMUP_STEPS}))
    dist.destroy_process_group()


def _batches(reader: BatchReader) -> Iterator[Batch]:
    while (batch := reader.get()) is not None:
        yield batch


def sparse_features(batch: Batch, features: list[str]) -> Any:
    """The ids of ``batch`` as the ``KeyedJaggedTensor`` of ``features``; nothing is copied."""
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    lengths = batch.lengths
    if lengths is None:
        lengths = torch.ones(len(features) * batch.size, dtype=torch.int64)
    return KeyedJaggedTensor(keys=features, values=batch.values, lengths=lengths, stride=batch.size)


def _train(model: Any, optimizer: Any, batch: Batch, features: list[str], bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(batch.dense, sparse_features(batch, features))
    loss = binary_cross_entropy_with_logits(logits.float().squeeze(1), batch.labels)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()


def build_model(config: RunConfig, rows: dict[str, int], dense_features: int) -> Any:
    """TorchRec's own model of ``config``; the tables are on the meta device until they are placed."""
    from torchrec.models.dlrm import DLRM, DLRM_DCN
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    settings = config.model
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=settings.embedding_dim, num_embeddings=count, feature_names=[name])
        for name, count in rows.items()
    ]
    collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    layers = list(settings.dense_arch), list(settings.over_arch)
    if settings.arch == "dcnv2":
        return DLRM_DCN(collection, dense_features, *layers, settings.dcn_num_layers, settings.dcn_low_rank_dim)
    return DLRM(collection, dense_features, *layers)


def _place(config: RunConfig, module: Any) -> tuple[Any, Any]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

    fused = {
        "optimizer": getattr(EmbOptimType, _FUSED[config.embedding.optimizer]),
        "learning_rate": config.embedding.learning_rate,
        "eps": config.embedding.eps,
    }
    sharders: list[Any] = [EmbeddingBagCollectionSharder(fused_params=fused)]
    topology = Topology(world_size=RANKS, compute_device="cpu", local_world_size=RANKS)
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(module, sharders, dist.GroupMember.WORLD)
    model = DistributedModelParallel(module, device=torch.device("cpu"), plan=plan, sharders=sharders)
    dense = [parameter for name, parameter in model.named_parameters() if "embedding" not in name]
    rate, eps = config.dense.learning_rate, config.dense.eps
    if config.dense.optimizer == "adagrad":
        return model, torch.optim.Adagrad(dense, lr=rate, eps=eps, fused=True)
    return model, torch.optim.Adam(dense, lr=rate, eps=eps, fused=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
