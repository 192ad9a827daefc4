"""What a save keeps of a run beside rows and dense parameters: data position, quality so far, budget."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import Manifest
from services.coordinator.books_state import BooksState

_KEY = "run_state"


class RunState(BaseModel):
    """``extra.run_state`` of a manifest; versioned with the manifest's format.

    Attributes:
        books: rows that are done, and what they came to.
        readers: the data is cut for so many.
        total_samples: of the whole run, for the learning rates.
        useful_s: seconds trained.
        spent_pls: by partial recoveries.
        effective_pls: the same by accesses; ``None``: not counted.
        row_losing_failures: for the mean time between them.
        seed: of the run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    books: BooksState
    readers: int
    total_samples: int
    useful_s: float
    spent_pls: float
    effective_pls: float | None
    row_losing_failures: int
    seed: int

    @property
    def samples(self) -> int:
        """Trained."""
        return self.books.position.counts["trained"]

    def to_extra(self) -> dict[str, Any]:
        """For ``CheckpointStore.commit``."""
        return {_KEY: self.model_dump(mode="json")}

    @classmethod
    def of(cls, manifest: Manifest) -> RunState:
        """Read it from a save.

        Raises:
            SaveCorrupt: the save has none that this version can read.
        """
        try:
            return cls.model_validate(manifest.extra.get(_KEY))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, (_KEY, *first["loc"])))
            raise SaveCorrupt(f"save {manifest.save_id}: extra.{where} cannot be read: {first['msg']}") from None
