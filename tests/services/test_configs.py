"""The files in configs/ and their settings for data."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.config_file import ConfigError, dump_config, load_config
from trainer.config import ListConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_file_loads_and_survives_a_dump(path: Path, tmp_path: Path) -> None:
    config = load_config(str(path))
    (tmp_path / "again.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(str(tmp_path / "again.yaml")) == config


def test_a_column_map_by_overrides() -> None:
    given = ["format=tsv", "columns.label=0", "columns.categorical=[1, 2]", "columns.header=false"]
    lists = ["columns.lists.3.weights=4", 'columns.delimiter="\\t"', "unlabeled=false"]
    columns = load_config(None, [f"data.{item}" for item in [*given, *lists]]).data.columns
    assert (columns.label, columns.categorical, columns.delimiter) == ("0", ("1", "2"), "\t")
    assert columns.lists == {"3": ListConfig(weights="4")}


def test_contradictions_name_the_settings_and_their_places() -> None:
    with pytest.raises(ConfigError, match=r"data\.format=csv needs data\.columns.*\(data.format: command line"):
        load_config(None, ["data.format=csv"])
    with pytest.raises(ConfigError, match=r"unknown key data\.columns\.sparse; did you mean"):
        load_config(None, ["data.columns.sparse=[a]"])
