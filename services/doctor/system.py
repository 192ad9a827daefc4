"""Memory, descriptors, sockets and disk."""

from __future__ import annotations

from typing import Final

from services.cli.units import size
from services.doctor.check import Check, fail, ok, warn

_GIB: Final = 1 << 30
_MEMORY_FAIL_BYTES: Final = 2 * _GIB
_MEMORY_WARN_BYTES: Final = 6 * _GIB
_SHM_WARN_BYTES: Final = _GIB // 2
_DISK_FAIL_BYTES: Final = _GIB // 2
_DISK_WARN_BYTES: Final = 10 * _GIB
_FILES_FAIL: Final = 1024
_FILES_WARN: Final = 4096


def memory_check(total_bytes: int, available_bytes: int) -> Check:
    """Memory that this process may use, a container's limit included."""
    found = f"{size(available_bytes)} of {size(total_bytes)} free"
    remedy = "free memory or take a larger machine; `penumbra plan` says what the tables need"
    if available_bytes < _MEMORY_FAIL_BYTES:
        return fail("memory", f"{found}; a run of two trainers and two shards needs {size(_MEMORY_FAIL_BYTES)}", remedy)
    return warn("memory", found, remedy) if available_bytes < _MEMORY_WARN_BYTES else ok("memory", found)


def memfd_check(error: str | None) -> Check:
    """Whether anonymous memory files can be made, sized and mapped; rows live in them."""
    if error is None:
        return ok("memfd", "memory files can be made and mapped")
    return fail(
        "memfd", error, "rows live in memfds: Linux 3.17 or newer, and a sandbox that allows memfd_create and mmap"
    )


def abstract_socket_check(error: str | None) -> Check:
    """Whether descriptors can be passed over an abstract Unix socket; keepers hand out memory that way."""
    if error is None:
        return ok("unix sockets", "descriptors can be passed over abstract sockets")
    return fail("unix sockets", error, "keepers need abstract Unix sockets: Linux, and a sandbox that allows AF_UNIX")


def open_files_check(soft: int, hard: int) -> Check:
    """RLIMIT_NOFILE; Ray raises the soft limit to the hard one."""
    found = f"{soft} open files, at most {hard}"
    remedy = "raise it: ulimit -n 65536, or nofile in /etc/security/limits.conf, or docker run --ulimit nofile=65536"
    if hard < _FILES_FAIL:
        return fail("open files", found, remedy)
    return warn("open files", found, remedy) if hard < _FILES_WARN else ok("open files", found)


def shared_memory_check(free_bytes: int | None) -> Check:
    """Room for Ray's object store."""
    name, remedy = "/dev/shm", "Ray's object store falls back to disk: docker run --shm-size=1g, or mount a tmpfs"
    if free_bytes is None:
        return warn(name, "is not there", remedy)
    found = f"{size(free_bytes)} free"
    return warn(name, found, remedy) if free_bytes < _SHM_WARN_BYTES else ok(name, found)


def disk_check(path: str, free_bytes: int, writable: bool) -> Check:
    """Room for runs."""
    found = f"{size(free_bytes)} free in {path}"
    if not writable:
        return fail("disk", f"{path} cannot be written", "choose another directory: storage_path=…")
    remedy = "free space, or choose another directory: storage_path=…"
    if free_bytes < _DISK_FAIL_BYTES:
        return fail("disk", found, remedy)
    return warn("disk", found, remedy) if free_bytes < _DISK_WARN_BYTES else ok("disk", found)


def gpu_check(driver: bool, cuda_build: str | None, devices: tuple[str, ...]) -> Check:
    """Whether torch and the machine agree on a GPU.

    Args:
        driver: an NVIDIA driver is loaded.
        cuda_build: the CUDA version torch was built for.
        devices: names of the GPUs that torch can use.
    """
    if devices:
        return ok("gpu", f"{', '.join(devices)} (CUDA {cuda_build})")
    if driver:
        build = f"torch is built for CUDA {cuda_build} and" if cuda_build else "torch is a CPU build and"
        return warn(
            "gpu", f"an NVIDIA driver is loaded, {build} uses no GPU",
            "make clean && make setup ACCELERATOR=gpu; with a CUDA build: is the driver new enough (nvidia-smi)?",
        )  # fmt: skip
    return ok("gpu", "none; training runs on the CPU")
