"""Ray for one command: joined where a cluster runs, started (and ended) inside the command otherwise."""

from __future__ import annotations

import logging
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.config import RunConfig

_OBJECT_STORE_BYTES = 512 * 1024 * 1024
_ROOT = str(Path(__file__).resolve().parent.parent)


@contextmanager
def ray_session(config: RunConfig) -> Iterator[None]:
    """Connect to ``cluster.address``, to the cluster this job runs in, or to a private Ray that ends with the command.

    A private Ray offers as many logical CPUs as the run reserves, so that a laptop can hold every role. Its session
    directory (Ray's logs and sockets) goes with it, unless ``PENUMBRA_DEBUG`` is set.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

    if ray.is_initialized():  # a test or a notebook has its own session
        yield
        return
    address = config.cluster.address or os.environ.get("RAY_ADDRESS")
    # Actors import Penumbra by package name: from this checkout when it is not installed.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _ROOT not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, paths)])
    debug = bool(os.environ.get("PENUMBRA_DEBUG"))
    common = {"log_to_driver": debug, "logging_level": logging.INFO if debug else logging.ERROR}
    if address:
        ray.init(address=address, **common)
    else:
        ray.init(
            "local",  # without it Ray joins any cluster that runs on this machine, and refuses the settings below
            num_cpus=max(os.cpu_count() or 1, math.ceil(config.reserved_cpus)),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **common,
        )
    session = None if address or debug else _session_directory(ray)
    try:
        yield
    finally:
        ray.shutdown()
        if session is not None:
            shutil.rmtree(session, ignore_errors=True)


def _session_directory(ray: Any) -> Path | None:
    """The directory of the session that this process started; ``None`` when its name does not say so."""
    node = ray._private.worker._global_node  # Ray tells it nowhere else
    if node is None or not node.is_head():
        return None
    path = Path(node.get_session_dir_path())
    named = path.name.startswith("session_") and path.name.endswith(f"_{os.getpid()}")
    return path if named and path.is_dir() and not path.is_symlink() else None
