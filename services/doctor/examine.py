"""All checks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from services.doctor import facts, packages, system
from services.doctor.check import Check


def examine(storage_path: str, *, start_ray: bool) -> Iterator[Check]:
    """Every check, cheap ones first; ``start_ray=False`` leaves out the one that starts a Ray."""
    yield packages.python_check(sys.version_info[:3])
    yield packages.match_check(facts.matched_versions())
    yield system.memory_check(*facts.memory_bytes())
    yield system.memfd_check(facts.memfd_error())
    yield system.abstract_socket_check(facts.abstract_socket_error())
    yield system.open_files_check(*facts.open_files())
    yield system.shared_memory_check(facts.shared_memory_bytes())
    yield system.disk_check(*facts.disk(storage_path))
    yield system.gpu_check(*facts.gpu_facts())
    yield packages.valkey_check(*facts.valkey())
    yield packages.import_check(facts.probe_lookup())
    if start_ray:
        yield packages.ray_check(facts.versions("ray")["ray"], facts.probe_ray())
