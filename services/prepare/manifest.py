"""What a directory of prepared data holds, and from which files: the memory of ``penumbra prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.prepare.plan import Piece, Source

NAME: Final = "prepare.json"
SIDE: Final = "_prepare"
"""Directory of what the report is made from; readers skip names that begin with an underscore."""


class Settings(BaseModel):
    """What all files of one directory have in common."""

    model_config = ConfigDict(frozen=True)

    labeled: bool = True
    group_rows: int
    file_rows: int


class Done(BaseModel):
    """One finished output file."""

    piece: Piece
    rows: int
    rejected: int
    counted: bool


class Manifest(BaseModel):
    """Written anew, under a temporary name, whenever a file is finished."""

    version: Literal[1] = 1
    settings: Settings
    sources: dict[str, Source] = {}
    done: dict[str, Done] = {}

    @classmethod
    def open(cls, out: Path, settings: Settings) -> Manifest:
        """The manifest of ``out``, or a fresh one for a directory without data.

        Raises:
            ValueError: the directory was prepared with other settings, or holds other data.
        """
        path = out / NAME
        if not path.exists():
            present = sorted(file.name for file in out.glob("*.parquet"))
            if present:
                raise ValueError(f"{out} already holds {len(present)} Parquet files ({present[0]} …); choose another")
            return cls(settings=settings)
        try:
            found = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            raise ValueError(
                f"{path} cannot be read ({error}); choose another directory, or remove this one"
            ) from error
        if found.settings != settings:
            raise ValueError(
                f"{out} was prepared with {found.settings!r}, now asked for is {settings!r}; "
                "choose another directory, or remove this one"
            )
        return found

    def keep(self, pieces: list[Piece], counted: bool, out: Path) -> None:
        """Forgets, and deletes, finished files that the present inputs would not give."""
        wanted = {piece.name: piece for piece in pieces}
        for name, done in list(self.done.items()):
            fits = wanted.get(name) == done.piece and (done.counted or not counted)
            if not (fits and (out / name).is_file() and stats_path(out, name).is_file()):
                del self.done[name]
                (out / name).unlink(missing_ok=True)

    def write(self, out: Path) -> None:
        """Replaces the file in one step."""
        part = out / f".{NAME}.part"
        part.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        part.replace(out / NAME)


def stats_path(out: Path, name: str) -> Path:
    """Where the column statistics of an output file are."""
    return out / SIDE / f"{name}.npz"


def rejected_path(out: Path, name: str) -> Path:
    """Where the malformed lines behind an output file are; not there when there are none."""
    return out / SIDE / f"{name}.rejected.jsonl"
