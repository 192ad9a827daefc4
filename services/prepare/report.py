"""What ``penumbra prepare`` says at the end."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class ColumnReport(BaseModel):
    """One column: missing fields, and distinct values among the others (within about 2 % unless ``exact``)."""

    missing: int
    cardinality: int
    exact: bool


class VocabularyReport(BaseModel):
    """Vocabularies: the values seen at least ``min_count`` times, per feature."""

    directory: str
    min_count: int
    values: dict[str, int]


class PrepareReport(BaseModel):
    """Also in ``report.json``. ``resumed_files`` of ``files`` were there from an earlier run."""

    schema_version: Literal[1] = Field(default=1, serialization_alias="schema", validation_alias="schema")
    sources: list[str]
    files: list[str]
    resumed_files: int
    rows: int
    rejected_lines: int
    bytes: int
    wall_s: float
    rows_per_s: float
    columns: dict[str, ColumnReport]
    vocabulary: VocabularyReport | None = None
