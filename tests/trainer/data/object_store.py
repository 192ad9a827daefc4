"""A real server of the S3 protocol on this machine, and the environment that leads everybody to it."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator

import fsspec
import pytest
from moto.server import ThreadedMotoServer


class ObjectStore:
    """The server and its one bucket, ``clicks``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, name: str, content: bytes) -> str:
        """Store an object; returns its address."""
        fsspec.filesystem("s3").pipe(f"clicks/{name}", content)
        return f"s3://clicks/{name}"

    def refuse_everybody(self) -> None:
        """From now on requests are checked, and nobody has any right."""
        self._control("reset-auth", b"0")
        forget_connections()

    def empty(self) -> None:
        """Back to a server without objects that everybody may use; its state belongs to the process."""
        self._control("reset-auth", b"inf")
        self._control("reset", b"")

    def _control(self, what: str, content: bytes) -> None:
        address = f"{self.url}/moto-api/{what}"
        request = urllib.request.Request(address, content, {"Content-Type": "text/plain"}, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


def forget_connections() -> None:
    """The next access reads the environment anew."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@contextlib.contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Serve, point this process there, and end both."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        store = ObjectStore(f"http://{host}:{port}")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        forget_connections()
        fsspec.filesystem("s3").mkdir("clicks")
        yield store
        store.empty()
    finally:
        forget_connections()
        server.stop()
