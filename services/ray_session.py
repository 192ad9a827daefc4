"""Ray for one command: joined where a cluster runs, started (and ended) inside the command otherwise."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.config import RunConfig

_OBJECT_STORE_BYTES = 512 * 1024 * 1024
_ROOT = str(Path(__file__).resolve().parent.parent)


@contextmanager
def ray_session(config: RunConfig) -> Iterator[None]:
    """Connect to ``cluster.address``, to the cluster this job runs in, or to a private Ray that ends with the command.

    A private Ray offers as many logical CPUs as the run reserves, so that a laptop can hold every role.
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
    try:
        yield
    finally:
        ray.shutdown()
