from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from services.config import RunConfig
from services.config_file import ConfigError, dump_config, load_config

CONFIGS = Path(__file__).parents[2] / "configs"


def _write(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _problems(path: str | None, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value.problems


def test_nothing_given_is_all_defaults() -> None:
    assert load_config(None) == RunConfig()


def test_file_then_overrides(tmp_path: Path) -> None:
    path = _write(tmp_path, "train: {batch_size: 64, epochs: 3}\ndata:\n  features:\n    C1: {rows: 7}\n")
    config = load_config(
        path, ["train.batch_size=128", "data.features.C1.min_count=2", "data.features.C2.rows=9", "name=x"]
    )
    assert (config.train.batch_size, config.train.epochs, config.name) == (128, 3, "x")
    assert {name: (c.rows, c.min_count) for name, c in config.data.features.items()} == {"C1": (7, 2), "C2": (9, 1)}


def test_the_last_override_wins() -> None:
    assert load_config(None, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("text", ["", "# only a comment\n", "train:\ndata:\n  features:\n"])
def test_empty_file_and_empty_sections_are_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(_write(tmp_path, text)) == RunConfig()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("dense.learning_rate=1e-3", 1e-3),  # YAML 1.1, and so PyYAML, reads text
        ("dense.learning_rate=.5", 0.5),
        ("dense.learning_rate=2", 2.0),
        ("train.batch_size=1e4", 10_000),
        ("train.batch_size=010", 10),  # YAML 1.1 reads 8
        ("train.batch_size=1_000", 1000),
        ("name=2024", "2024"),
        ("name=1e3", "1e3"),
        ("name=no", "no"),  # YAML 1.1 reads false
        ("data.train=007", "007"),
        ("data.train=[a, 1]", ("a", "1")),
        ("data.train='null'", "null"),
        ("data.eval=null", None),
        ("data.eval=", None),
        ("train.deterministic=False", False),
    ],
)
def test_values_are_what_was_typed(override: str, expected: object) -> None:
    value: Any = load_config(None, [override])
    for name in override.partition("=")[0].split("."):
        value = getattr(value, name)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("train.batchsize", "did you mean train.batch_size?"),
        ("train.batch-size", "did you mean train.batch_size?"),
        ("batch_size", "did you mean train.batch_size?"),
        ("training.batch_size", "did you mean train.batch_size?"),
        ("dense.lr", "did you mean dense.learning_rate?"),
        ("learning_rate", "did you mean dense.learning_rate or embedding.learning_rate?"),
        ("embeding", "did you mean embedding?"),
        ("data.features.C1.row", "did you mean data.features.<name>.rows?"),
        ("hogwild_thread", "did you mean train.hogwild_threads?"),
        ("sync.zzzz", "keys of sync: mode, algorithm, alpha, gap"),
    ],
)
def test_unknown_key_names_the_nearest_known_one(key: str, suggestion: str) -> None:
    assert _problems(None, f"{key}=1") == (f"command line: unknown key {key}; {suggestion}",)


def test_unknown_key_of_the_file_has_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, "name: a\ntrain:\n  epochs: 1\n  batchsize: 64\n")
    assert _problems(path) == (f"{path} line 4: unknown key train.batchsize; did you mean train.batch_size?",)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.batch_size=0", "train.batch_size must be a whole number, at least 1 and at most 1000000; found 0"),
        ("train.batch_size=1.5", "train.batch_size must be a whole number, at least 1 and at most 1000000; found 1.5"),
        ("train.epochs=true", "train.epochs must be a whole number, at least 1; found true"),
        ("train.epochs='3'", 'train.epochs must be a whole number, at least 1; found "3"'),
        ("train.epochs=", "train.epochs must be a whole number, at least 1; found null"),
        ("train.epochs={a: 1}", 'train.epochs must be a whole number, at least 1; found {"a": 1}'),
        ("dense.learning_rate=0", "dense.learning_rate must be a number, more than 0; found 0"),
        ("dense.learning_rate=.inf", 'dense.learning_rate must be a number, more than 0; found ".inf"'),
        ("dense.learning_rate=1e999", 'dense.learning_rate must be a number, more than 0; found "1e999"'),
        ("train.precision=fp16", 'train.precision must be one of fp32, bf16; found "fp16"'),
        ("train.deterministic=yes", 'train.deterministic must be true or false; found "yes"'),
        ("sync.alpha=1", "sync.alpha must be a number, more than 0 and less than 1; found 1"),
        (
            "model.embedding_dim=30",
            "model.embedding_dim must be a whole number, at least 4 and at most 1024 and a multiple of 4; found 30",
        ),
        (
            "model.dense_arch=[8, x]",
            'model.dense_arch must be a list, each item a whole number, at least 1; found [8, "x"]',
        ),
        ("data.train={a: 1}", 'data.train must be text or a list, each item text; found {"a": 1}'),
        ("data.eval={a: 1}", 'data.eval must be text or a list, each item text or null; found {"a": 1}'),
        ("name=a/b", 'name must be text, matching ^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$; found "a/b"'),
        (
            "data.features.C1.rows=1",
            "data.features.C1.rows must be a whole number, at least 2 and at most 2147483647; found 1",
        ),
        ("train=5", "train is a section, found 5; its keys are batch_size, epochs, "),
    ],
)
def test_wrong_value_names_path_range_and_what_was_found(override: str, expected: str) -> None:
    (problem,) = _problems(None, override)
    assert problem.startswith(f"command line: {expected}")


def test_wrong_value_of_the_file_has_its_line_unless_overridden(tmp_path: Path) -> None:
    path = _write(tmp_path, "model:\n  embedding_dim: 16\n\ntrain:\n  epochs:\n    0\n")
    assert _problems(path) == (f"{path} line 5: train.epochs must be a whole number, at least 1; found 0",)
    assert load_config(path, ["train.epochs=2"]).train.epochs == 2


def test_settings_against_each_other_say_where_each_was_set(tmp_path: Path) -> None:
    path = _write(tmp_path, "model:\n  dense_arch: [64, 16]\n")
    (problem,) = _problems(path, "model.embedding_dim=32")
    assert problem.startswith("model.dense_arch must end in model.embedding_dim (32), got [64, 16]")
    assert f"model.dense_arch: {path} line 2; model.embedding_dim: command line" in problem


def test_settings_of_two_sections_against_each_other() -> None:
    overrides = ["train.deterministic=true", "train.lookahead=0", "train.precision=fp32", "cluster.trainers=2"]
    (problem,) = _problems(None, *overrides)
    assert "train.deterministic needs cluster.trainers=1, got 2" in problem


def test_dlrm_refuses_tables_of_another_width_and_dcnv2_takes_them() -> None:
    (problem,) = _problems(None, "embedding.tables.C3.dim=8")
    assert (
        "embedding.tables.C3.dim is 8, but the dot interaction of model.arch=dlrm needs model.embedding_dim" in problem
    )
    config = load_config(None, ["embedding.tables.C3.dim=8", "model.arch=dcnv2"])
    assert config.embedding.tables["C3"].dim == 8


def test_a_misspelt_key_is_not_reported_a_second_time_by_its_consequence() -> None:
    (problem,) = _problems(None, "model.embedding_dim=32", "model.dense_arc=[64, 32]")
    assert "unknown key model.dense_arc" in problem


def test_duplicate_keys_are_refused_with_both_lines(tmp_path: Path) -> None:
    path = _write(tmp_path, "train:\n  epochs: 1\n  batch_size: 2\n  epochs: 2\n")
    assert _problems(path) == (f"{path} line 4: train.epochs is given twice, first at {path} line 2",)


def test_everything_wrong_is_reported_together(tmp_path: Path) -> None:
    path = _write(tmp_path, "trian: {}\nname: a\nname: b\nsync: {gap: 0}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["seed=-1", "nonsense"])
    text = str(caught.value)
    assert text.startswith("5 problems in the configuration:")
    for part in ("line 1: unknown key trian", "line 3: name is given twice", "line 4: sync.gap", "seed", "'nonsense'"):
        assert part in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: [1\n", "line 2: not valid YAML"),
        ("a: 1\n b: 2\n", "line 2: not valid YAML"),
        ("- 1\n- 2\n", "line 1: the document is a section"),
        ("just text\n", "line 1: the document is a section"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("name: !!python/object/apply:os.system [id]\n", "line 1"),
        ("train: &t\n  epochs: *t\n", "line 1: train.epochs contains itself"),
        ("? [a, b]\n: 1\n", "line 1: a key of the document is not a plain name"),
        ("name: \0\n", "not valid YAML"),
    ],
)
def test_broken_yaml_is_one_clear_problem(tmp_path: Path, text: str, expected: str) -> None:
    path = _write(tmp_path, text)
    problems = _problems(path)
    assert any(problem.startswith(path) and expected in problem for problem in problems), problems


@pytest.mark.parametrize("override", ["train.epochs", "=3", "train.=3", ".epochs=3", ""])
def test_overrides_that_are_no_assignment(override: str) -> None:
    assert _problems(None, override) == (f"command line: {override!r} is not of the form key.path=value",)


def test_unreadable_files(tmp_path: Path) -> None:
    assert "No such file" in _problems(str(tmp_path / "none.yaml"))[0]
    assert "directory" in _problems(str(tmp_path))[0]
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    assert _problems(str(binary)) == (f"{binary}: is not UTF-8 text (byte 6)",)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_load(path: Path) -> None:
    config = load_config(str(path))
    assert config.data.train
    assert config.name


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ODD = st.sampled_from(
    ["1e3", "no", "null", "~", "007", "1.5", "true", "0x1F", "12:30", "2024-01-01", "- a", "{", "", "\x85", "a\u2028b"]
)
_PATHS = _TEXT | _ODD
_CATEGORIES = st.fixed_dictionaries(
    {}, optional={"rows": st.integers(2, 2**31 - 1), "encoding": st.sampled_from(["hash", "vocabulary"])}
)
_CONFIGS = st.builds(
    RunConfig,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True) | st.sampled_from(["1e3", "no", "007"]),
    storage_path=_PATHS.filter(lambda path: "://" not in path),
    seed=st.integers(0, 2**63 - 1),
    data=st.fixed_dictionaries(
        {
            "train": _PATHS | st.lists(_PATHS, max_size=3).map(tuple),
            "eval": st.none() | _PATHS,
            "eval_fraction": st.floats(0, 1, exclude_max=True),
            "features": st.dictionaries(_PATHS, _CATEGORIES, max_size=3),
        }
    ),
    dense=st.fixed_dictionaries({"learning_rate": st.floats(0, exclude_min=True, allow_infinity=False)}),
    cluster=st.fixed_dictionaries({"address": st.none() | _PATHS}),
)


@settings(deadline=None, max_examples=60)
@given(config=_CONFIGS)
def test_dump_loads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: RunConfig) -> None:
    text = dump_config(config)
    path = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_config(str(path)) == config
    # Any other YAML reader sees the same file: text stays text for PyYAML's YAML 1.1 too.
    assert yaml.safe_load(text) == config.model_dump(mode="json")


def test_a_feature_inherits_what_it_does_not_say_and_keeps_it_through_a_dump(tmp_path: Path) -> None:
    settings = ["data.categories.encoding=vocabulary", "data.categories.min_count=4", "data.features.C3.min_count=9"]
    config = load_config(None, settings)
    assert config.data.features["C3"].encoding == "vocabulary"
    assert config.data.features["C3"].min_count == 9
    dumped = tmp_path / "config.yaml"
    dumped.write_text(dump_config(config), encoding="utf-8")
    assert load_config(str(dumped)) == config
