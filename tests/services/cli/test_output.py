from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services.cli.output import stdout_to_stderr


def test_prints_and_child_processes_are_kept_off_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with stdout_to_stderr():
        print("from python")
        os.write(1, b"from a library\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    os.write(1, b"the result\n")
    seen = capfd.readouterr()
    assert seen.out == "the result\n"
    assert sorted(seen.err.splitlines()) == ["from a child", "from a library", "from python"]


def test_stdout_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="boom"), stdout_to_stderr():
        raise ValueError("boom")
    print("back", flush=True)
    os.write(1, b"again\n")
    assert capfd.readouterr().out == "back\nagain\n"
