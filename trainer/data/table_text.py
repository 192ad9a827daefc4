"""CSV and TSV with a user's own columns, found by the map in ``data.columns``."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from trainer.data.block import RawBlock, RejectedLine, shorten
from trainer.data.errors import DataError
from trainer.data.index import FileIndex
from trainer.data.lines import LineReader, Lines, open_stream
from trainer.data.paths import resolve_files
from trainer.data.schema import FeatureSchema
from trainer.data.split import Split
from trainer.data.table_block import TableMap
from trainer.data.text_files import locate_row, read_text, scan_text

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TableText:
    """Plain, gzip or zstd text. Stateless, so it can be shared by threads and pickled.

    ``quoted``: fields may be in double quotes, a quote inside is doubled; a line break inside is not allowed.
    ``layout``: all columns of the training files, for files without a header that may leave out the label's.
    """

    table: TableMap
    delimiter: str
    quoted: bool
    layout: tuple[str, ...] = ()

    @property
    def schema(self) -> FeatureSchema:
        """The mapped columns."""
        return self.table.schema

    @property
    def first_line(self) -> int:
        """Line of the first row, from 1."""
        return 1 + self._header_lines

    @property
    def _header_lines(self) -> int:
        return int(self.table.columns.header)

    def resolve(self, patterns: str | Sequence[str]) -> list[str]:
        """Files behind ``patterns``; in a directory those that end in .csv, .tsv, .txt, .gz, .zst or have no suffix."""
        return resolve_files(patterns, (".csv" if self.quoted else ".tsv", ".txt", ".gz", ".zst", ""))

    def scan(self, path: str, rows_per_split: int) -> FileIndex:
        """Counts rows and notes byte offsets, in one pass and flat memory; the columns must be there."""
        self.table.check_names(path, self._names(path))
        return scan_text(path, rows_per_split, self._header_lines)

    def locate(self, index: FileIndex, row: int) -> int:
        """Byte offset of a row between two indexed ones."""
        return locate_row(index, row)

    def like(self, trained: str) -> TableText:
        """The same for files without a label that otherwise have the columns of the file ``trained``."""
        return self if self.table.columns.header else replace(self, layout=tuple(self._names(trained)))

    def has_label(self, path: str) -> bool:
        """Whether the column that ``data.columns.label`` names is there."""
        return self.table.columns.label in self._names(path)

    def read(self, split: Split, ranges: Sequence[tuple[int, int]], block_rows: int) -> Iterator[RawBlock]:
        """Decoded blocks of at most ``block_rows`` input rows that cover ``ranges`` of the split exactly."""
        names = self._names(split.path)
        for row, lines in read_text(split, ranges, block_rows, self._header_lines):
            yield self._block(lines, names, split.path, row)

    def _names(self, path: str) -> list[str]:
        """Column names in file order, from the header or the settings; positions where there is neither."""
        columns = self.table.columns
        with open_stream(path) as stream:
            lines = LineReader(stream, path).take(1)
        if lines is None:
            raise DataError(path, "is empty; remove it or take it out of data.train, data.eval, data.predict")
        first = lines.buffer[lines.start : lines.end].tobytes().removeprefix(_BOM).rstrip(b"\r\n")
        fields = self._fields(first)
        if fields is None:
            raise DataError(path, f"its first line cannot be split: {shorten(first.decode('utf-8', 'replace'))}")
        if columns.header:
            twice = sorted({name for name in fields if fields.count(name) > 1})
            if twice:
                raise DataError(path, f"its header names {', '.join(map(shorten, twice))} more than once")
            return fields
        names = self.layout or columns.names
        if self.layout and len(fields) == len(names) - 1:
            return [name for name in names if name != columns.label]
        if names and len(names) != len(fields):
            wanted = f"data.columns.names has {len(names)}"
            if self.layout:
                wanted = f"the training files have {len(names)}, or one fewer without the label"
            raise DataError(
                path,
                f"its first line has {len(fields)} columns, {wanted}; "
                f"is data.columns.delimiter ({self.delimiter!r}) right?",
            )
        return list(names) or [str(position) for position in range(len(fields))]

    def _fields(self, line: bytes) -> list[str] | None:
        """Fields of one line; ``None`` when a quote is not closed."""
        text = line.decode("utf-8", "surrogateescape")
        if not self.quoted:
            return text.split(self.delimiter)
        try:
            return next(csv.reader([text], delimiter=self.delimiter, strict=True), [""])
        except csv.Error:
            return None

    def _block(self, lines: Lines, names: list[str], path: str, row: int) -> RawBlock:
        text = lines.buffer[lines.start : lines.end]
        parsed = self._parse(text, lines.rows, names)
        if parsed is not None:
            return self.table.block(parsed, path, row, row + self._header_lines)
        sorted_out = self._sort_out(text, names, path, row)
        parsed = self._parse(sorted_out.text, len(sorted_out.row_index), names)
        if parsed is None:
            raise DataError(path, f"rows {row + 1} to {row + lines.rows}: checked and parsed lines disagree (a bug)")
        # The block counts the lines that are left; their numbers in the file are put in place of that.
        block = self.table.block(parsed, path, 0, 0)
        kept = np.array(sorted_out.row_index, dtype=np.int64)
        rejected = [line._replace(line=int(kept[line.line - 1]) + 1 + self._header_lines) for line in block.rejected]
        block.row_index = kept if block.row_index is None else kept[block.row_index]
        block.rejected = sorted([*sorted_out.rejected, *rejected], key=lambda line: line.line)
        block.line_start, block.line_end = row, row + lines.rows
        return block

    def _parse(self, text: NDArray[np.uint8], rows: int, names: list[str]) -> pa.RecordBatch | None:
        """The needed columns as bytes; ``None`` when a line is not a row of ``names``."""
        bad: list[int] = []
        schema = pa.schema([(name, pa.binary()) for name in self.table.needed])
        if rows == 0:
            return pa.RecordBatch.from_arrays([pa.array([], pa.binary())] * len(schema), schema=schema)

        def note(invalid: pc.InvalidRow) -> str:
            bad.append(invalid.number)
            return "skip"

        if len(names) > 1 and _has_empty_line(text):
            return None
        table = pc.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pc.ReadOptions(column_names=names, use_threads=False, block_size=text.size + 1),
            parse_options=pc.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self.quoted else False,
                ignore_empty_lines=False,
                invalid_row_handler=note,
            ),
            convert_options=pc.ConvertOptions(
                column_types=schema, include_columns=schema.names, strings_can_be_null=False
            ),
        )
        if bad or table.num_rows != rows:  # a quote that is not closed swallows lines
            return None
        return table.combine_chunks().to_batches()[0]

    def _sort_out(self, text: NDArray[np.uint8], names: list[str], path: str, row: int) -> _SortedOut:
        """The slow path: separates lines that do not have the right number of columns."""
        good: list[bytes] = []
        row_index: list[int] = []
        rejected: list[RejectedLine] = []
        for number, line in enumerate(text.tobytes().split(b"\n")[:-1], start=row):
            fields = self._fields(line.removesuffix(b"\r"))
            if fields is not None and len(fields) == len(names) and (line.strip() or len(names) == 1):
                good.append(line + b"\n")
                row_index.append(number)
                continue
            if fields is None:
                found, expected = "a quote that is not closed", "quotes that close on their line"
            else:
                found = f"{len(fields)} columns" if line.strip() else "an empty line"
                expected = f"{len(names)} columns separated by {self.delimiter!r}"
            rejected.append(RejectedLine(path, number + 1 + self._header_lines, "line", found, expected))
        return _SortedOut(np.frombuffer(b"".join(good), dtype=np.uint8), row_index, rejected)


class _SortedOut(NamedTuple):
    text: NDArray[np.uint8]
    row_index: list[int]
    rejected: list[RejectedLine]


def _has_empty_line(text: NDArray[np.uint8]) -> bool:
    ends = np.flatnonzero(text == 10)
    sizes = np.diff(ends, prepend=-1) - 1
    blank = (sizes == 0) | ((sizes == 1) & (text[ends - 1] == 13))
    return bool(blank.any())
