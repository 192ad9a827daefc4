"""Opens a run's data: splits, and encoders built from the training rows."""

from __future__ import annotations

from pathlib import Path

from services.config import RunConfig
from services.coordinator.setup import PreparedData
from trainer.data.dataset import open_dataset
from trainer.data.encoder import build_encoders
from trainer.data.errors import DataError
from trainer.data.vocabulary import save_vocabularies
from trainer.data.vocabulary_build import find_vocabularies

_SPLITS_PER_READER = 8


def readers_of(config: RunConfig) -> int:
    """Threads of all trainers that read."""
    return config.cluster.trainers * config.data.reader_threads


def prepare_data(config: RunConfig, run_directory: Path | None, readers: int | None = None) -> PreparedData:
    """Scan the files once; vocabularies come from ``data.vocabulary`` or one more pass over the training rows.

    ``readers``: cut the data for so many; a run that is resumed with other trainers keeps the cut of its data position.

    Raises:
        DataError: nothing to train on, or a file cannot be read.
    """
    dataset = open_dataset(config.data)
    readers = readers or readers_of(config)
    predict = dataset.unlabeled.plan(readers) if dataset.unlabeled else None
    plan = dataset.plan_splits()
    if len(plan.train) < readers * _SPLITS_PER_READER:  # a small file: finer splits, so that every trainer has work
        finer = max(1, plan.train_rows // (readers * _SPLITS_PER_READER))
        if finer < config.data.rows_per_split:
            dataset = open_dataset(config.data.model_copy(update={"rows_per_split": finer}))
            plan = dataset.plan_splits()
    if plan.train_rows == 0:
        raise DataError(str(config.data.train), "no training rows are left (data.train, data.eval_fraction)")
    vocabularies = find_vocabularies(dataset, plan.train, config.data)
    encoders = build_encoders(dataset.schema, config.data, vocabularies)
    if vocabularies and run_directory is not None:
        save_vocabularies(vocabularies, run_directory / "vocabulary")
    return PreparedData(dataset, plan, encoders, predict)
