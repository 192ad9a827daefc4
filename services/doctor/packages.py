"""Python and the packages whose versions must fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.doctor.check import Check, fail, ok, warn

MATCH: Final = {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm": "1.8.0"}
"""The versions that are tested together."""

FBGEMM: Final = ("fbgemm-gpu-cpu", "fbgemm-gpu")
"""Two distributions of one module."""

_SETUP: Final = "`make clean && make setup` installs the tested versions (with ACCELERATOR=gpu for an NVIDIA GPU)"


@dataclass(frozen=True)
class Probe:
    """How a trial in a process of its own ended: its exit code (negative: killed by that signal) and its last words."""

    code: int
    last_line: str = ""

    @property
    def ended(self) -> str:
        """In words."""
        how = f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"{how}: {self.last_line}" if self.last_line else how


def python_check(version: tuple[int, int, int]) -> Check:
    """Python 3.11 or newer; 3.11 is what is tested."""
    found = ".".join(map(str, version))
    if version < (3, 11, 0):
        return fail("python", found, "use Python 3.11: make setup PYTHON=/path/to/python3.11")
    return ok("python", found)


def match_check(installed: Mapping[str, str | None]) -> Check:
    """The torch, torchrec and fbgemm versions against each other.

    Args:
        installed: version of each distribution (torch, torchrec, fbgemm-gpu-cpu, fbgemm-gpu), ``None`` where absent.
    """
    name = "torch/torchrec/fbgemm"
    found = ", ".join(f"{package} {version}" for package, version in installed.items() if version) or "none of them"
    fbgemm = [package for package in FBGEMM if installed.get(package)]
    missing = [package for package in ("torch", "torchrec") if not installed.get(package)]
    if missing or not fbgemm:
        lacking = ", ".join([*missing, *([] if fbgemm else ["fbgemm-gpu-cpu"])])
        return fail(name, f"{found}; not installed: {lacking}", _SETUP)
    if len(fbgemm) > 1:
        return fail(
            name, f"{found}: both own the module fbgemm_gpu, one has overwritten the other",
            f"pip uninstall {' '.join(fbgemm)}, then {_SETUP}",
        )  # fmt: skip
    versions = {"torch": installed["torch"], "torchrec": installed["torchrec"], "fbgemm": installed[fbgemm[0]]}
    other = [package for package, version in versions.items() if (version or "").split("+")[0] != MATCH[package]]
    if other:
        wanted = ", ".join(f"{package} {MATCH[package]}" for package in other)
        return warn(name, f"{found}; tested with {wanted}", _SETUP)
    return ok(name, found)


def valkey_check(version: str | None, error: str | None) -> Check:
    """Whether the private state store can be started; a run with ``state.redis_url`` does without."""
    name = "state store"
    if error is None:
        return ok(name, f"Valkey {version}")
    return fail(name, error, f"{_SETUP}; or name a server: state.redis_url=redis://HOST:6379/0")


def import_check(probe: Probe) -> Check:
    """Whether fbgemm and torchrec load, and an embedding lookup runs."""
    name = "embedding lookup"
    if probe.code == 0:
        return ok(name, "fbgemm and torchrec load, a lookup runs")
    hint = (
        "; fbgemm-gpu needs the NVIDIA driver: without one install fbgemm-gpu-cpu" if "lib" in probe.last_line else ""
    )
    return fail(name, probe.ended, _SETUP + hint)


def ray_check(version: str | None, probe: Probe) -> Check:
    """Whether Ray is there and runs a task."""
    if version is None:
        return fail("ray", "not installed", _SETUP)
    if probe.code == 0:
        return ok("ray", f"ray {version} starts and runs a task")
    return fail(
        "ray",
        f"ray {version} does not run a task, {probe.ended}",
        "look into /tmp/ray/session_latest/logs; `ray stop --force` removes what an earlier Ray left",
    )
