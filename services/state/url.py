"""The URL of the store: what may be one, and what people may see of it. Without the client: all load the settings."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("redis", "rediss", "unix")


def url_problem(url: str) -> str | None:
    """Why ``url`` cannot be the store's, without repeating it; ``None`` if it can."""
    allowed = "state.redis_url must be redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{allowed}; its port is not a number up to 65535 (a password is percent-encoded)"
    if parts.scheme not in _SCHEMES:
        # Without "://" the whole text could be a password.
        return f"{allowed}; its scheme is {parts.scheme!r}" if "://" in url else f"{allowed}; it has no scheme"
    if parts.scheme == "unix":
        return None if parts.path.startswith("/") else f"{allowed}; its path must be absolute"
    if not parts.hostname or port == 0:
        return f"{allowed}; it names no host or port"
    database = parts.path.strip("/")
    return None if database.isdigit() or not database else f"{allowed}; its database is not a number"


def public_url(url: str) -> str:
    """``url`` without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
