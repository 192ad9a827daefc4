"""Freed memory stays in the process: seen by the page faults of a second use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_CODE = """
import json, resource, sys, threading
import torch
from services.allocator import keep_freed_memory
torch.set_num_threads(1)
kept = keep_freed_memory(512 << 20) if sys.argv[1] == "keep" else None
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
found = []
def work():
    def use():
        parts = [torch.empty(1 << 20).fill_(1) for _ in range(40)]  # 4 MiB each
        parts.clear()
    for _ in range(5):
        use()
    before = faults()
    for _ in range(10):
        use()
    found.append(faults() - before)
thread = threading.Thread(target=work); thread.start(); thread.join()
print(json.dumps([kept, found[0]]))
"""


def _faults(mode: str) -> tuple[bool | None, int]:
    kept, faults = json.loads(subprocess.check_output([sys.executable, "-c", _CODE, mode], timeout=120))
    return kept, faults


def test_a_thread_that_allocates_again_faults_no_page_in_again() -> None:
    kept, faults = _faults("keep")
    if not kept:
        pytest.skip("no glibc here")
    _, usual = _faults("default")
    assert faults * 20 < usual, (faults, usual)
