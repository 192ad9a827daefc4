"""Connections to the state store: short timeouts, no retries."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.state.url import url_problem


def connect(url: str, timeout_s: float) -> redis.Redis:
    """A client of ``url``; connects with its first command.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://`` with an absolute path.
        timeout_s: for connecting, and for each answer.

    Raises:
        ValueError: it is no such URL. The message does not repeat it, since it may hold a password.
    """
    problem = url_problem(url)
    if problem:
        raise ValueError(problem)
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # Who tries again, and when, is decided by whoever knows what the command does when it comes twice.
        retry=Retry(NoBackoff(), 0),
        # RESP 3 would wait for a maintenance handshake; the client's name costs two round trips a connection.
        protocol=2,
        driver_info=None,
    )
