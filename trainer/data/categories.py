"""Which category settings apply to which feature."""

from __future__ import annotations

import difflib

from trainer.config import CategoryConfig, DataConfig
from trainer.data.schema import FeatureSchema


def category_settings(schema: FeatureSchema, cfg: DataConfig) -> dict[str, CategoryConfig]:
    """Settings per sparse feature: ``data.features.<name>`` where given, else ``data.categories``; capped rows.

    Raises:
        ValueError: ``data.features`` names a feature that the data does not have.
    """
    names = [spec.name for spec in schema.sparse]
    for name in cfg.features:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names)}"
            raise ValueError(f"data.features.{name}: the data ({cfg.format}) has no sparse feature {name!r}; {hint}")
    chosen = {name: cfg.features.get(name, cfg.categories) for name in names}
    if cfg.max_table_rows is None:
        return chosen
    return {name: own.model_copy(update={"rows": min(own.rows, cfg.max_table_rows)}) for name, own in chosen.items()}
