"""Where the run's state is kept."""

from __future__ import annotations

from pydantic import field_validator

from services.state.url import url_problem
from trainer.config import Settings


class StateConfig(Settings):
    """Settings of the state store (docs/state.md).

    ``redis_url``: a Redis or Valkey server, ``redis://``, ``rediss://`` (TLS) or ``unix://``; ``null`` starts a private
    Valkey in the run directory.
    """

    redis_url: str | None = None

    @field_validator("redis_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        problem = None if url is None else url_problem(url)
        if problem:
            raise ValueError(problem)
        return url
