"""The header of keeper-owned memory: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.memory import header
from services.memory.header import ALIGN_BYTES, ITEM_BYTES, ArraySpec, HeaderError, Layout

_NAMES = st.text(min_size=1, max_size=12)
_META = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_LAYOUTS = st.builds(
    Layout,
    owner=_NAMES,
    meta=st.dictionaries(_NAMES, _META, max_size=4),
    arrays=st.dictionaries(
        _NAMES, st.builds(ArraySpec, st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 5000)), max_size=5
    ),
)


def _written(layout: Layout, generation: int = 3) -> bytearray:
    memory = bytearray(layout.total_bytes)
    header.write_header(memoryview(memory), layout, generation, pid=77)
    return memory


@given(_LAYOUTS, st.integers(1, 2**40))
def test_what_is_written_is_read_back(layout: Layout, generation: int) -> None:
    memory = _written(layout, generation)
    found, state, found_generation = header.read_header(memoryview(memory))
    assert (found, state, found_generation) == (layout, header.BUILDING, generation)


@given(_LAYOUTS)
def test_arrays_are_aligned_and_do_not_overlap(layout: Layout) -> None:
    end = header.FIXED_BYTES + len(layout.to_json())
    for name, offset in sorted(layout.offsets().items(), key=lambda item: item[1]):
        assert offset % ALIGN_BYTES == 0
        assert offset >= end or layout.arrays[name].numel == 0
        end = max(end, offset + layout.arrays[name].nbytes)
    assert end <= layout.total_bytes


def test_the_fixed_part_is_where_the_format_says() -> None:
    """Read by the documented layout alone, without the module's own reader."""
    layout = Layout("shard-1", {"run": "r"}, {"weights": ArraySpec("float32", 5)})
    memory = _written(layout, generation=9)
    magic, version, state, generation, pid, layout_bytes, offset, total = struct.unpack_from("<8sIIqqqqq", memory)
    assert (magic, version, state, generation, pid) == (b"PENUMBRA", 1, 0, 9, 77)
    assert json.loads(memory[64 : 64 + layout_bytes])["arrays"] == {"weights": ["float32", 5]}
    assert (offset, total) == (4096, len(memory)) == (4096, 8192)


def test_state_and_writer_change_in_place() -> None:
    layout = Layout("shard-1", {}, {"weights": ArraySpec("float32", 5)})
    memory = _written(layout)
    header.set_state(memoryview(memory), header.READY)
    header.set_writer(memoryview(memory), 4, 1234)
    assert header.read_header(memoryview(memory)) == (layout, header.READY, 4)
    assert struct.unpack_from("<q", memory, 24) == (1234,)


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, b"SOMEBODY", "SOMEBODY"),
        (8, struct.pack("<I", 2), "version 2, this build reads version 1"),
        (48, struct.pack("<q", 1 << 20), "1048576 bytes, the region has 8192"),
        (40, struct.pack("<q", 4160), "data at 4096"),
        (32, struct.pack("<q", 30), "cannot be read"),  # a layout cut short
        (64, b"[]        ", "cannot be read"),
        (64, b"\0" * 16, "cannot be read"),  # the writer died before the layout was there
    ],
)
def test_anything_else_is_refused_with_its_reason(at: int, value: bytes, says: str) -> None:
    memory = _written(Layout("shard-1", {}, {"weights": ArraySpec("float32", 5)}))
    memory[at : at + len(value)] = value
    with pytest.raises(HeaderError, match=says):
        header.read_header(memoryview(memory))


def test_memory_shorter_than_a_header_is_refused() -> None:
    with pytest.raises(HeaderError, match="63 bytes is shorter"):
        header.read_header(memoryview(bytearray(63)))


@given(_LAYOUTS, st.data())
def test_a_damaged_header_is_read_or_refused_but_never_anything_else(layout: Layout, data: st.DataObject) -> None:
    memory = _written(layout)
    end = header.FIXED_BYTES + len(layout.to_json())
    for _ in range(data.draw(st.integers(1, 4))):
        memory[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    try:
        found, _, _ = header.read_header(memoryview(memory))
    except HeaderError:
        return
    assert found.total_bytes == len(memory)  # whatever it says, no array lies outside the region
