"""A writer is killed, at any time and at every file boundary: the newest complete save loads, as it was logged."""

from __future__ import annotations

import multiprocessing
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
import torch

from checkpoint.errors import SaveNotFound
from checkpoint.manifest import MANIFEST, Manifest
from checkpoint.manifest_file import to_text
from checkpoint.restore import RestoreReport, restore_newest
from checkpoint.retention import RetentionPolicy
from checkpoint.store import CheckpointStore
from tests.checkpoint import doomed_writer
from tests.checkpoint.doomed_writer import Step, as_tensors, logged, tables
from tests.checkpoint.kill_points import KillPoint, calls, cut_power
from tests.checkpoint.save_parts import whole

_KILLS = 50
_FEW_ROWS, _MANY_ROWS = 2000, 30_000

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.checkpoint.doomed_writer"])  # torch is imported once


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "saves"


def start(
    folder: Path, rows: int, seed: int, steps: Sequence[Step] | None, kill: KillPoint | None = None
) -> ForkServerProcess:
    process = _context.Process(target=doomed_writer.live, args=(folder, folder.parent / "log", rows, seed, steps, kill))
    process.start()
    return process


def calls_of(process: ForkServerProcess, folder: Path) -> list[tuple[str, str]]:
    return calls(folder.parent / "log" / f"calls-{process.pid}")


def check_newest(folder: Path, rows: int) -> RestoreReport:
    """The newest save restores, checksums and all, and has every bit that the writer logged."""
    into = whole(tables(rows), 99)
    report = restore_newest(CheckpointStore(str(folder), run="r"), into)
    expected = logged(folder.parent / "log", report.save_ids[-1])
    found = as_tensors(into)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), (report.save_ids, name)
    return report


@pytest.mark.timeout(200)
def test_killed_at_fifty_random_moments(folder: Path) -> None:
    """One run, fifty writers: each goes on from what the one before left, and is killed from outside."""
    moments = random.Random(7)
    store = CheckpointStore(str(folder), run="r")
    inside, newest, committed = 0, -1, 0
    for number in range(_KILLS):
        process = start(folder, _MANY_ROWS, number, None)
        ready = folder.parent / "log" / f"ready-{process.pid}"
        while not ready.exists():
            assert process.is_alive()
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        names = sorted(path.name for path in (folder / "saves").iterdir()) if (folder / "saves").exists() else []
        unfinished = [name for name in names if not (folder / "saves" / name / MANIFEST).exists()]
        inside += bool(unfinished)
        try:
            report = check_newest(folder, _MANY_ROWS)
        except SaveNotFound:
            assert newest < 0
            continue
        youngest = store.read_manifest(report.save_ids[-1]).sequence
        assert youngest >= newest  # what was complete once stays
        committed += youngest > newest
        newest = youngest
        assert {skipped.save_id for skipped in report.skipped} == {
            name for name in unfinished if int(name.split("-")[1]) > youngest
        }
    assert inside >= 10
    assert committed >= 10


SCENARIOS: dict[str, list[Step]] = {
    "full in chunks": [("full", False)],
    "consistent delta": [("delta", True)],
    "priority": [("priority", False)],
    "retention": [("full", True), ("retain", False)],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_file_boundary(folder: Path, scenario: str) -> None:
    """And when the power is cut there, so that nothing is left but what was synced."""
    steps = SCENARIOS[scenario]
    first = start(folder, _FEW_ROWS, 0, [("full", True)])
    first.join()
    assert first.exitcode == 0
    base = folder.with_name("base")
    folder.rename(base)

    shutil.copytree(base, folder)
    whole_run = start(folder, _FEW_ROWS, 1, steps)
    whole_run.join()
    assert whole_run.exitcode == 0
    made = calls_of(whole_run, folder)
    new_id = check_newest(folder, _FEW_ROWS).save_ids[-1]
    visible_from = made.index(("replace", f"/saves/{new_id}/{MANIFEST}"))
    points = [
        KillPoint(number, when)
        for number, (name, _) in enumerate(made)
        for when in (("before", "middle", "after") if "write" in name else ("before", "after"))
        if scenario != "retention" or number > visible_from
    ]
    assert len(points) > 10
    for point in points:
        shutil.rmtree(folder)
        shutil.copytree(base, folder)
        process = start(folder, _FEW_ROWS, 1, steps, point)
        process.join()
        assert process.exitcode == -signal.SIGKILL, point
        assert calls_of(process, folder) == made[: point.call + 1]
        report = check_newest(folder, _FEW_ROWS)
        complete = point.call > visible_from or (point.call == visible_from and point.when != "before")
        assert (report.save_ids[-1] == new_id) == complete, point
        done = made[: point.call + 1]
        if point.when != "after" and done[-1][0] == "fsync":
            done.pop()
        cut_power(folder, base, done)
        durable = point.call > visible_from + 2 or point == KillPoint(visible_from + 2, "after")
        assert (check_newest(folder, _FEW_ROWS).save_ids[-1] == new_id) == durable, point
    after = start(folder, _FEW_ROWS, 2, [("full", False), ("delta", True)])  # the run goes on over what is left
    after.join()
    assert after.exitcode == 0
    assert check_newest(folder, _FEW_ROWS).skipped == ()
    assert CheckpointStore(str(folder), run="r").incomplete() == []


def test_everything_is_durable_before_the_manifest_shows_it(folder: Path) -> None:
    """Each file is synced after its last write, then its directory, then comes the rename."""
    process = start(folder, _FEW_ROWS, 0, [("full", False), ("delta", True)])
    process.join()
    assert process.exitcode == 0
    made = calls_of(process, folder)
    manifests = [path for name, path in made if name == "replace" and path.endswith(MANIFEST)]
    assert len(manifests) == 2
    for manifest in manifests:
        directory = manifest.rpartition("/")[0]
        shown = made.index(("replace", manifest))
        before = made[:shown]
        files = {path for name, path in before if name == "create" and path.startswith(directory)}
        assert {path.rpartition("/")[2].partition(".")[0] for path in files} >= {"shard-0000", "manifest"}
        for path in files:
            own = [number for number, (_, where) in enumerate(before) if where == path]
            assert before[own[-1]][0] == "fsync", path
        created = max(n for n, (name, where) in enumerate(before) if name == "create" and "manifest" not in where)
        assert ("fsync", directory) in before[created:]
        assert made[shown + 1 : shown + 3] == [("open", directory), ("fsync", directory)]
        assert ("fsync", "/saves") in made[made.index(("mkdir", directory)) : shown]


def _bare(directory: Path, newest: Manifest) -> str:
    return "missing: save .* was never completed"


def _empty_manifest(directory: Path, newest: Manifest) -> str:
    (directory / MANIFEST).touch()
    return "0 bytes without a checksum at the end: torn"


def _truncated_manifest(directory: Path, newest: Manifest) -> str:
    text = _manifest_of(directory, newest)
    (directory / MANIFEST).write_bytes(text[: len(text) // 2])
    return "without a checksum at the end: torn"


def _altered_manifest(directory: Path, newest: Manifest) -> str:
    (directory / MANIFEST).write_bytes(_manifest_of(directory, newest).replace(b'"samples":', b'"samples":1'))
    return "altered after it was written"


def _manifest_of_another_save(directory: Path, newest: Manifest) -> str:
    (directory / MANIFEST).write_bytes(to_text(newest))
    return f"is of save {newest.save_id}"


def _missing_file(directory: Path, newest: Manifest) -> str:
    (directory / MANIFEST).write_bytes(_manifest_of(directory, newest))
    (directory / newest.files[0].path).unlink()
    return "is missing, and its manifest names it"


def _short_file(directory: Path, newest: Manifest) -> str:
    (directory / MANIFEST).write_bytes(_manifest_of(directory, newest))
    path = directory / newest.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    return r"bytes, its manifest says .*: torn"


def _manifest_of(directory: Path, newest: Manifest) -> bytes:
    sequence = int(directory.name.split("-")[1])
    return to_text(newest.model_copy(update={"save_id": directory.name, "sequence": sequence}))


@pytest.mark.parametrize(
    "plant",
    [
        _bare,
        _empty_manifest,
        _truncated_manifest,
        _altered_manifest,
        _manifest_of_another_save,
        _missing_file,
        _short_file,
    ],
)
def test_a_planted_newer_looking_save_is_passed_over_and_named(
    folder: Path, plant: Callable[[Path, Manifest], str]
) -> None:
    first = start(folder, _FEW_ROWS, 0, [("full", True)])
    first.join()
    store = CheckpointStore(str(folder), run="r")
    (newest,) = store.list()
    planted = folder / "saves" / "0000-00000007-full"
    shutil.copytree(folder / "saves" / newest.save_id, planted)
    (planted / MANIFEST).unlink()
    reason = plant(planted, newest)
    report = check_newest(folder, _FEW_ROWS)
    assert report.save_ids == (newest.save_id,)
    (skipped,) = report.skipped
    assert skipped.save_id == planted.name
    assert re.search(reason, skipped.reason), skipped.reason
    assert f"skipped {planted.name}: " in str(report)
    following = start(folder, _FEW_ROWS, 1, [("delta", True)])  # and whoever goes on does not write into it
    following.join()
    assert following.exitcode == 0
    assert check_newest(folder, _FEW_ROWS).save_ids == (newest.save_id, "0000-00000008-delta")


def test_what_crashed_saves_left_is_swept_and_nothing_else(folder: Path) -> None:
    first = start(folder, _FEW_ROWS, 0, [("full", True), ("delta", True)])
    first.join()
    (kept, delta) = CheckpointStore(str(folder), run="r").list()
    shutil.rmtree(folder / "saves" / delta.save_id)
    for sequence, names in ((3, ["shard-0000.safetensors"]), (4, ["manifest.json.tmp", "ticket.json"]), (5, [])):
        orphan = folder / "saves" / f"0000-{sequence:08d}-delta"
        orphan.mkdir()
        for name in names:
            (orphan / name).write_bytes(b"part")
    (folder / "saves" / "notes.txt").touch()
    store = CheckpointStore(str(folder), run="r")
    assert store.retain(RetentionPolicy(keep_last=1)) == []
    assert store.sweep() == ["0000-00000003-delta", "0000-00000004-delta"]
    names = sorted(path.name for path in (folder / "saves").iterdir())
    assert names == [kept.save_id, "0000-00000005-delta", "notes.txt"]  # the newest number is not given out again
    assert store.sweep() == []
    check_newest(folder, _FEW_ROWS)
