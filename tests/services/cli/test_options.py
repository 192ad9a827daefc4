from __future__ import annotations

import pytest

from services.cli.options import with_unlabeled
from services.config_file import load_config


@pytest.mark.parametrize(
    ("overrides", "files", "predict"),
    [
        (None, None, ()),
        (["seed=3"], ["a.txt"], ("a.txt",)),
        (["b.txt", "seed=3", "c d.txt"], ["a.txt"], ("a.txt", "b.txt", "c d.txt")),  # --unlabeled *.txt seed=3
        (["data.predict=x"], ["é: [1].txt", "s3://b/k=1/*.gz"], ("é: [1].txt", "s3://b/k=1/*.gz")),
    ],
)
def test_unlabeled_files_become_a_setting(
    overrides: list[str] | None, files: list[str] | None, predict: tuple[str, ...]
) -> None:
    config = load_config(None, with_unlabeled(overrides, files))
    assert config.data.predict == predict
    assert config.seed == (3 if overrides and "seed=3" in overrides else 0)
