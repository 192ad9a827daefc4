"""What every record has: a kind, a name within it, a schema number; and how one becomes text and back."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.state.errors import UnreadableRecordError

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0.0)]

_PREFIX: Final = "penumbra:run"


class Part(BaseModel):
    """Something inside a record."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Record(Part):
    """One value of the store, JSON under ``penumbra:run:{run}:{kind}:{name}``.

    A reader takes its own schema alone, and no key that it does not know: what it left out would be lost when it
    writes the record again. All processes of a run are of one version, so this happens only when a run is resumed by
    another one.
    """

    kind: ClassVar[str]
    schema_version: Literal[1] = Field(default=1, alias="schema")

    @property
    def name(self) -> str:
        """Which of its kind; empty where there is one."""
        return ""


R = TypeVar("R", bound=Record)


def key_of(run: str, kind: str, name: str = "") -> str:
    """Where a record is."""
    return f"{_PREFIX}:{run}:{kind}:{name}" if name else f"{_PREFIX}:{run}:{kind}"


def encode(record: Record) -> bytes:
    """JSON, the same for equal records."""
    return record.model_dump_json(by_alias=True).encode()


def decode(record_type: type[R], key: str, text: bytes) -> R:
    """The record under ``key``.

    Raises:
        UnreadableRecordError: another version wrote it, or something else than Penumbra.
    """
    try:
        return record_type.model_validate_json(text, by_alias=True)
    except ValidationError as error:
        raise UnreadableRecordError(
            f"{key} is not a {record_type.kind} record of this version of Penumbra ({_problem(error)}); go on with the "
            "version that wrote it, or start the run under another name"
        ) from None


def etag_of(text: bytes) -> str:
    """Names the content: equal records have equal etags, also after they were sent again to an emptied store."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def _problem(error: ValidationError) -> str:
    details: list[Any] = error.errors(include_url=False, include_context=False)
    for detail in details:
        if detail["loc"] == ("schema",):
            return f"its schema is {detail['input']!r}"
    where = ".".join(map(str, details[0]["loc"]))
    return f"{where}: {details[0]['msg']}" if where else str(details[0]["msg"])
