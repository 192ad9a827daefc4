"""The faulty file system by itself, over a local folder and over memory."""

from __future__ import annotations

import errno
import io
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from services.faults.storage import faulty_url, register_faulty
from services.faults.storage_switch import ActiveFault, StorageSwitch, is_used, turn_off, turn_on
from tests.services.run_tools import wait_until

DATA = bytes(range(256)) * 4


class Disk:
    """A folder under faults, seen from both sides."""

    def __init__(self, control: Path, target: str) -> None:
        register_faulty()
        self.control = str(control)
        fs, self.root = fsspec.url_to_fs(faulty_url(control, target))
        self.fs: Any = fs
        self.below: Any = fsspec.url_to_fs(target)[0]

    def put(self, name: str, data: bytes = DATA) -> None:
        self.fs.pipe_file(f"{self.root}/{name}", data)

    def stored(self, name: str) -> bytes:
        found: bytes = self.below.cat_file(f"{self.root}/{name}")
        return found

    def on(self, fault_id: str = "1", **fault: Any) -> None:
        turn_on(self.control, ActiveFault.model_validate({"id": fault_id, "fault": fault}))
        time.sleep(0.06)

    def off(self, fault_id: str = "1") -> None:
        turn_off(self.control, fault_id)
        time.sleep(0.06)


@pytest.fixture(params=["folder", "memory"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Disk:
    name = request.node.name.replace("[", "-").replace("]", "")
    return Disk(
        tmp_path / "control.json", str(tmp_path / "disk") if request.param == "folder" else f"memory://faults/{name}"
    )


def test_without_a_fault_it_is_the_file_system_below(disk: Disk) -> None:
    assert is_used(disk.control)
    disk.put("a/b/file")
    assert disk.stored("a/b/file") == DATA == disk.fs.cat_file(f"{disk.root}/a/b/file")
    assert [Path(path).name for path in disk.fs.ls(f"{disk.root}/a/b", detail=False)] == ["file"]
    assert disk.fs.info(f"{disk.root}/a/b/file")["size"] == len(DATA)
    with disk.fs.open(f"{disk.root}/a/b/file") as file:
        file.seek(256)
        assert file.read(3) == b"\0\1\2" and file.tell() == 259
        buffer = bytearray(10)
        assert file.readinto(buffer) == 10 and buffer == DATA[259:269]
    with disk.fs.open(f"{disk.root}/new", "wb") as file:
        file.write(b"one ")
        file.write(b"two")
    assert disk.stored("new") == b"one two"
    with pytest.raises(RuntimeError), disk.fs.open(f"{disk.root}/given-up", "wb") as file:
        raise RuntimeError
    assert not disk.below.exists(f"{disk.root}/given-up")
    disk.fs.rm_file(f"{disk.root}/a/b/file")
    assert not disk.fs.exists(f"{disk.root}/a/b")
    with pytest.raises(FileNotFoundError):
        disk.fs.cat_file(f"{disk.root}/a/b/file")


@pytest.mark.parametrize(
    ("fault", "number", "failing"),
    [
        ({"kind": "error"}, errno.EIO, {"put", "read", "list", "delete"}),
        ({"kind": "error", "operations": ["read"]}, errno.EIO, {"read"}),
        ({"kind": "error", "match": "*.json"}, errno.EIO, set()),
        ({"kind": "denied"}, errno.EACCES, {"put", "read", "list", "delete"}),
        ({"kind": "read_only"}, errno.EROFS, {"put", "delete"}),
        ({"kind": "full"}, errno.ENOSPC, {"put"}),
    ],
)
def test_each_error_hits_its_operations_until_it_ends(
    disk: Disk, fault: dict[str, Any], number: int, failing: set[str]
) -> None:
    disk.put("old")
    disk.on(**fault)
    operations = {
        "put": lambda: disk.put("new"),
        "read": lambda: disk.fs.cat_file(f"{disk.root}/old"),
        "list": lambda: disk.fs.ls(disk.root),
        "delete": lambda: disk.fs.rm_file(f"{disk.root}/old"),
    }
    failed = {}
    for name, operation in operations.items():
        try:
            operation()
        except OSError as error:
            failed[name] = error.errno
    assert failed == dict.fromkeys(failing, number)
    disk.off()
    disk.put("old", b"again")
    assert disk.fs.cat_file(f"{disk.root}/old") == b"again"


def test_a_full_storage_takes_what_fits(disk: Disk) -> None:
    disk.on(kind="full", after_bytes=2500)
    disk.put("1")
    disk.put("2")
    with pytest.raises(OSError, match="No space left") as caught:
        disk.put("3")
    assert caught.value.errno == errno.ENOSPC
    disk.put("3", b"small")
    assert disk.stored("3") == b"small"
    disk.off()
    disk.on("2", kind="full", after_bytes=1024)
    disk.put("4")  # a new fault counts anew


def test_a_share_of_errors(disk: Disk) -> None:
    disk.on(kind="error", share=0.5, operations=["write"])
    failures = 0
    for _ in range(200):
        try:
            disk.put("file", b"x")
        except OSError:
            failures += 1
    assert 70 < failures < 130


def test_torn_and_corrupt_writes_report_success(disk: Disk) -> None:
    disk.on(kind="torn", after_bytes=100)
    disk.put("torn")
    with disk.fs.open(f"{disk.root}/closed", "wb") as file:
        file.write(DATA)
    assert disk.stored("torn") == disk.stored("closed") == DATA[:100]
    disk.off()
    disk.on("2", kind="torn", after_bytes=100, padded=True)
    disk.put("padded")
    assert disk.stored("padded") == DATA[:100] + bytes(len(DATA) - 100)
    disk.off("2")
    disk.on("3", kind="corrupt")
    disk.put("corrupt")
    different = [one ^ other for one, other in zip(disk.stored("corrupt"), DATA, strict=True) if one != other]
    assert len(different) == 1 and different[0].bit_count() == 1
    disk.put("corrupt")
    assert [one ^ other for one, other in zip(disk.stored("corrupt"), DATA, strict=True) if one != other] == different


def test_a_slow_operation_ends_when_the_fault_does(disk: Disk) -> None:
    disk.on(kind="slow", bytes_per_s=1)
    done = threading.Event()

    def put() -> None:
        disk.put("file")
        done.set()

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    assert not done.wait(0.3)
    turn_off(disk.control, "1")
    assert done.wait(5)
    assert disk.stored("file") == DATA


def test_slow_adds_its_time(disk: Disk) -> None:
    disk.on(kind="slow", s_per_operation=0.1, bytes_per_s=10240)
    started = time.monotonic()
    disk.put("file")
    assert time.monotonic() - started >= 0.2


def test_several_faults_at_once_and_one_ends(disk: Disk) -> None:
    disk.on("1", kind="corrupt")
    disk.on("2", kind="torn", after_bytes=3)
    disk.put("both")
    assert len(disk.stored("both")) == 3
    disk.off("2")
    disk.put("one")
    assert len(disk.stored("one")) == len(DATA) and disk.stored("one") != DATA
    disk.off("1")
    assert not Path(disk.control).exists()


def test_a_damaged_control_file_is_an_error_not_silence(disk: Disk) -> None:
    Path(disk.control).write_text('{"faults": [{"id": "1", "fault": {"kind": "sloow"}}]}')
    time.sleep(0.06)
    with pytest.raises(ValueError, match=r"control\.json: not a storage fault control file"):
        disk.put("file")


def test_the_switch_is_read_no_more_than_needed(tmp_path: Path) -> None:
    switch = StorageSwitch(str(tmp_path / "control"))
    assert switch.active() == ()
    turn_on(switch.path, ActiveFault.model_validate({"id": "1", "fault": {"kind": "denied"}}))
    wait_until(lambda: len(switch.active()) == 1, 5, "it is seen")
    first = switch.active()
    time.sleep(0.06)
    assert switch.active() is first


def test_a_url_without_control_or_target_says_what_is_right() -> None:
    register_faulty()
    for url in ("faulty::file:///x", "faulty:///control"):
        with pytest.raises(ValueError, match=r"a faulty URL is faulty:///path/of/control\.json::protocol://path"):
            fsspec.url_to_fs(url)


def test_a_file_is_put_whole_so_none_is_opened_to_append(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "control.json", f"file://{tmp_path}")
    with pytest.raises(io.UnsupportedOperation, match="rb, wb and xb, not 'ab'"):
        disk.fs.open(f"{disk.root}/f", "ab")
