"""The manifest's text: what is written is read, and nothing else is taken for a manifest."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from pydantic import ValidationError

from checkpoint.errors import SaveCorrupt
from checkpoint.manifest import FileEntry, Manifest, Segment, TableSpec
from checkpoint.manifest_file import from_text, to_text

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
_COUNT = st.integers(0, 2**60)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _segments(draw: DrawFn, tables: dict[str, TableSpec]) -> Segment:
    name = draw(st.sampled_from(sorted(tables)))
    spec, sparse = tables[name], draw(st.booleans())
    row_start, col_start = draw(st.integers(0, spec.rows - 1)), draw(st.integers(0, spec.dim - 1))
    row_end = draw(st.integers(row_start + 1, spec.rows))
    return Segment(
        prefix=draw(_TEXT),
        table=name,
        row_start=row_start,
        row_end=row_end,
        col_start=col_start,
        col_end=draw(st.integers(col_start + 1, spec.dim)),
        rows=draw(st.integers(0, row_end - row_start)) if sparse else row_end - row_start,
        sparse=sparse,
        encoding=draw(st.sampled_from(["fp32", "fp16", "int8", "int4"])),
        cut=draw(_COUNT),
    )


@st.composite
def _manifests(draw: DrawFn) -> Manifest:
    specs = st.builds(TableSpec, rows=st.integers(1, 2**40), dim=st.integers(1, 4096))
    tables = draw(st.dictionaries(_TEXT, specs, max_size=3))
    segments = st.lists(_segments(tables), max_size=3).map(tuple) if tables else st.just(())
    files = st.builds(
        FileEntry,
        path=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True),
        bytes=_COUNT,
        checksum=_TEXT,
        shard_id=st.none() | st.integers(),
        segments=segments,
        state=st.none() | _TEXT,
    )
    kind = draw(st.sampled_from(["full", "priority", "delta"]))
    return Manifest(
        save_id=draw(_TEXT),
        run=draw(_TEXT),
        kind=kind,
        consistent=draw(st.booleans()),
        timeline=draw(_COUNT),
        sequence=draw(_COUNT),
        parent=None if kind == "full" else draw(_TEXT),
        created_unix_s=draw(st.floats(allow_nan=False, allow_infinity=False)),
        samples=draw(_COUNT),
        tables=tables,
        files=tuple(draw(st.lists(files, max_size=3))),
        extra=draw(st.dictionaries(_TEXT, _JSON, max_size=3)),
    )


def _small(**changes: object) -> Manifest:
    segment = Segment(
        prefix="s0", table="t", row_start=2, row_end=6, col_start=0, col_end=4, rows=4, sparse=False,
        encoding="fp32", cut=1,
    )  # fmt: skip
    fields: dict[str, object] = {
        "save_id": "0000-00000001-full", "run": "r", "kind": "full", "consistent": True, "timeline": 0, "sequence": 1,
        "parent": None, "created_unix_s": 1.0, "samples": 10,
        "tables": {"t": TableSpec(rows=10, dim=4, dtype="fp32", optimizer="exact_sgd")},
        "files": (FileEntry(path="shard-0000.safetensors", bytes=10, checksum="xxh3_128:0", segments=(segment,)),),
    }  # fmt: skip
    return Manifest.model_validate(fields | changes)


@given(manifest=_manifests())
def test_what_is_written_is_read(manifest: Manifest) -> None:
    text = to_text(manifest)
    assert from_text(text, "here") == manifest
    fields = json.loads(text)
    assert list(fields)[-1] == "checksum"
    assert fields["extra"] == manifest.extra


@given(manifest=_manifests(), data=st.data())
def test_no_part_of_a_manifest_is_a_manifest(manifest: Manifest, data: st.DataObject) -> None:
    text = to_text(manifest)
    end = data.draw(st.integers(0, len(text) - 2))  # the newline alone may be missing
    with pytest.raises(SaveCorrupt, match="torn"):
        from_text(text[:end], "here")


@given(manifest=_manifests(), data=st.data())
def test_no_altered_byte_passes(manifest: Manifest, data: st.DataObject) -> None:
    text = bytearray(to_text(manifest))
    position = data.draw(st.integers(0, len(text) - 2))
    text[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SaveCorrupt, match=r"^here: "):
        from_text(bytes(text), "here")


def test_numbers_that_are_not_finite_stay_what_they_are() -> None:
    extra = from_text(to_text(_small(extra={"ne": math.nan, "best": [math.inf, -math.inf]})), "here").extra
    assert isinstance(extra["ne"], float)
    assert math.isnan(extra["ne"])
    assert extra["best"] == [math.inf, -math.inf]


def test_another_format_is_refused_with_both_numbers() -> None:
    text = to_text(_small().model_copy(update={"format": 2}))
    with pytest.raises(SaveCorrupt, match="format 2, and this version of Penumbra reads 1"):
        from_text(text, "here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parent": "0000-00000000-full"}, "contradict"),
        ({"kind": "delta"}, "contradict"),
        ({"tables": {}}, "not in the tables"),
        ({"tables": {"t": {"rows": 5, "dim": 4, "dtype": "fp32", "optimizer": "exact_sgd"}}}, "not in the tables"),
        ({"tables": {"t": {"rows": 10, "dim": 3, "dtype": "fp32", "optimizer": "exact_sgd"}}}, "not in the tables"),
        ({"samples": -1}, "greater than or equal to 0"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_what_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        _small(**changes)


@pytest.mark.parametrize(("rows", "sparse"), [(3, False), (5, False), (5, True)])
def test_more_or_fewer_rows_than_the_range_has_are_refused(rows: int, sparse: bool) -> None:
    (file,) = _small().files
    (segment,) = file.segments
    wrong = segment.model_copy(update={"rows": rows, "sparse": sparse})
    with pytest.raises(ValidationError, match=f"has {rows} rows"):
        _small(files=(file.model_copy(update={"segments": (wrong,)}),))
