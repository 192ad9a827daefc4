"""What a packer lays into buffers arrives in the file byte by byte, wherever rows meet the edges of buffers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpoint.buffers import BufferPool
from checkpoint.errors import StorageSlow
from checkpoint.packer import Packer
from checkpoint.save_plan import NUMPY, StoredTensor
from checkpoint.writer import FileJob, ShardWriter
from tests.checkpoint.save_parts import FAST
from tests.checkpoint.storage_faults import StuckSink

_BUFFER = 4096

_PARTS = st.lists(
    st.tuples(st.sampled_from([None, *NUMPY]), st.integers(1, 300), st.sampled_from([(), (1,), (7,), (64,), (2000,)])),
    min_size=1,
    max_size=5,
)
"""Raw bytes where the dtype is ``None``."""


def _random(dtype: torch.dtype, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    return random.integers(0, 256, size, np.uint8).view(NUMPY[dtype]).reshape(shape)


@settings(deadline=None, max_examples=60)
@given(parts=_PARTS, buffers=st.integers(2, 3), seed=st.integers(0, 2**32))
def test_bytes_arrive_in_order(parts: list[tuple[Any, int, tuple[int, ...]]], buffers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [_random(dtype or torch.uint8, (rows, *shape), random) for dtype, rows, shape in parts]
    total = sum(array.nbytes for array in arrays)
    writer = ShardWriter(BufferPool(buffers, _BUFFER), retry=FAST)
    with tempfile.TemporaryDirectory() as folder:
        job = writer.new_file(folder, "file", total)
        packer = Packer(writer, job, total, 60)
        for (dtype, _, _), array in zip(parts, arrays, strict=True):
            if dtype is None:
                packer.append(array.reshape(-1).data)
            else:
                tensor = StoredTensor("weight", dtype, array.shape, array.nbytes)
                packer.append_rows(tensor, lambda begin, end, out, array=array: np.copyto(out, array[begin:end]))
        assert job.result.result(60).bytes == total
        assert Path(folder, "file").read_bytes() == b"".join(array.tobytes() for array in arrays)
        assert writer.pool.wait_free(buffers, 60), "a buffer did not come back"
    writer.close()


def test_rows_that_fit_are_produced_in_place_and_once(tmp_path: Path) -> None:
    rows = 300
    writer = ShardWriter(BufferPool(2, _BUFFER), retry=FAST)
    packer = Packer(writer, writer.new_file(str(tmp_path), "file", rows * 64), rows * 64, 60)
    produced: list[tuple[int, int]] = []
    packer.append_rows(
        StoredTensor("weight", torch.float32, (rows, 16), rows * 64),
        lambda begin, end, out: produced.append((begin, end)),
    )
    per_buffer = _BUFFER // 64
    assert produced == [(start, min(start + per_buffer, rows)) for start in range(0, rows, per_buffer)]
    writer.close()


def test_whether_bytes_fit_without_waiting() -> None:
    writer, storage = ShardWriter(BufferPool(3, _BUFFER), retry=FAST), StuckSink()
    packer = Packer(writer, FileJob(storage), 1 << 20, 0.01)
    packer.append(memoryview(bytes(96)))
    assert packer.has_buffers(3 * _BUFFER - 96)
    held = [writer.pool.take(), writer.pool.take()]
    assert packer.has_buffers(_BUFFER - 96)
    assert not packer.has_buffers(_BUFFER - 95)
    with pytest.raises(StorageSlow, match=r"waited 0\.01 s for one of 3 buffers of 4,096 bytes"):
        packer.append(memoryview(bytes(_BUFFER)))
    storage.gate.set()
    for buffer in held:
        assert buffer is not None
        writer.pool.give(buffer)
    assert writer.pool.wait_free(3, 60)  # the full one was written, and no other is in hand
    packer.append(memoryview(bytes(1)))
    assert packer.has_buffers(1 << 19), "more than the pool has: as good as it gets"
    packer.release()
    packer.release()
    assert writer.pool.free == 3
    writer.close()
