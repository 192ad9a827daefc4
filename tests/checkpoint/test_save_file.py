"""Files of a save on file systems with O_DIRECT, without it, and with a coarser alignment; objects beside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xxhash

from checkpoint.buffers import PAGE_BYTES, aligned_memory
from checkpoint.errors import StorageError, StorageFull
from checkpoint.save_file import LocalSink, ObjectSink, Sink
from tests.checkpoint.save_parts import FAST

_BUFFER = 2 * PAGE_BYTES


@pytest.fixture
def without_direct(tmp_path: Path) -> Iterator[Path]:
    """A file system that refuses O_DIRECT."""
    folder = tmp_path / "ramfs"
    folder.mkdir()
    command = ["mount", "-t", "ramfs", "penumbra-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system without O_DIRECT needs root")
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        (folder / "probe").unlink(missing_ok=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _data(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


def _write(sink: Sink, data: bytes, offset: int = 0) -> tuple[int, str]:
    """As the writer thread does, from one buffer that begins ``offset`` bytes behind a page."""
    memory = aligned_memory(_BUFFER + PAGE_BYTES)
    buffer = memory[offset : offset + _BUFFER]
    for start in range(0, len(data), _BUFFER):
        part = data[start : start + _BUFFER]
        buffer[: len(part)] = np.frombuffer(part, np.uint8)
        sink.write(buffer.data, len(part))
    return sink.close()


@pytest.mark.parametrize("size", [1, PAGE_BYTES - 1, PAGE_BYTES, _BUFFER, _BUFFER + 1, 5 * _BUFFER, 5 * _BUFFER + 777])
@pytest.mark.parametrize("offset", [0, 1])
def test_files_have_their_bytes_whatever_the_size_and_the_alignment(tmp_path: Path, size: int, offset: int) -> None:
    data, path = _data(size), tmp_path / "file"
    assert _write(LocalSink(str(path), size, FAST), data, offset) == (
        size,
        f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}",
    )
    assert path.read_bytes() == data


@pytest.mark.parametrize("size", [1, _BUFFER, 5 * _BUFFER + 777])
def test_a_file_system_without_direct_writes_takes_them_too(without_direct: Path, size: int) -> None:
    data, path = _data(size), without_direct / "file"
    written, checksum = _write(LocalSink(str(path), 0, FAST), data)
    assert (written, checksum) == (size, f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}")
    assert path.read_bytes() == data


def test_somebody_elses_file_is_neither_overwritten_nor_deleted(tmp_path: Path) -> None:
    _refuses_a_file_that_is_there(tmp_path / "file")


def test_nor_is_it_without_direct_writes(without_direct: Path) -> None:
    _refuses_a_file_that_is_there(without_direct / "file")


def _refuses_a_file_that_is_there(path: Path) -> None:
    path.write_bytes(b"theirs")
    sink = LocalSink(str(path), 0, FAST)
    with pytest.raises(StorageError, match="could not create: FileExistsError"):
        _write(sink, b"ours")
    sink.discard()
    assert path.read_bytes() == b"theirs"


def test_a_file_larger_than_what_is_free_is_refused_before_it_is_made(tmp_path: Path) -> None:
    sink = LocalSink(str(tmp_path / "file"), 1 << 60, FAST)
    with pytest.raises(StorageFull, match=r"needs 1,152,921,504,606,846,976 bytes, [\d,]+ are free"):
        _write(sink, b"data")
    assert not list(tmp_path.iterdir())


def test_what_is_discarded_is_gone_and_stays_so(tmp_path: Path) -> None:
    sink = LocalSink(str(tmp_path / "file"), 4, FAST)
    sink.discard()
    sink.write(aligned_memory(PAGE_BYTES).data, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    sink.discard()
    sink.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [1, 5 * _BUFFER + 777])
def test_an_object_appears_whole_or_not_at_all(size: int) -> None:
    fs, path, data = fsspec.filesystem("memory"), "/test-save-file/object", _data(size)
    sink = ObjectSink(fs, path, FAST)
    sink.write(memoryview(data), len(data))
    assert not fs.exists(path)
    assert sink.close() == (size, f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}")
    assert fs.cat_file(path) == data
    sink.discard()
    sink.discard()
    assert not fs.exists(path)
