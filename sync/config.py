"""Settings of dense-replica synchronization."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class SyncConfig(BaseModel):
    """How dense replicas of several trainers stay together.

    ``foreground`` EASGD: each trainer exchanges with the sync server after every ``gap`` of its iterations (summed over
    its threads) and moves a fraction ``alpha`` towards the centre (arXiv 1412.6651; ShadowSync's FR-EASGD-k).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    mode: Literal["foreground", "none"] = "foreground"
    algorithm: Literal["easgd"] = "easgd"
    alpha: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    gap: Annotated[int, Field(ge=1)] = 4
