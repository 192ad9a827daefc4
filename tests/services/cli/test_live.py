from __future__ import annotations

import io
import os
import pty
import threading

import pytest

from services.cli.live import LiveProgress, line
from services.progress import Progress

RUNNING = Progress(
    state="RUNNING",
    stage="train",
    samples=250_000,
    total_samples=1_000_000,
    throughput_samples_per_s=50_000,
    loss=0.49123,
    ne=0.81,
    phases={"input": 0.1, "lookup_wait": 0.2, "dense": 0.7},
    trainers=2,
    shards=3,
)


def test_one_line_has_everything() -> None:
    assert line(RUNNING) == (
        "RUNNING train | 250,000 of 1,000,000 samples (25%), 0:15 left | 50,000 samples/s  loss 0.4912  NE 0.8100 | "
        "input 10 %  lookup wait 20 %  dense 70 %"
    )


def test_what_is_unknown_is_left_out() -> None:
    assert line(Progress(state="STARTING", stage="actors")) == "STARTING actors"
    assert line(Progress(state="RUNNING", stage="train", samples=5)) == "RUNNING train | 5 samples | 0 samples/s"


def test_predicted_rows_take_the_place_of_samples() -> None:
    predicting = Progress(
        state="RUNNING",
        stage="predicting",
        samples=100,
        total_samples=100,
        predicted_rows=2500,
        total_predicted_rows=10_000,
        throughput_samples_per_s=500.0,
    )
    assert line(predicting) == ("RUNNING predicting | 2,500 of 10,000 rows predicted (25%), 0:15 left | 500 samples/s")


def test_not_a_terminal_gets_a_line_every_five_seconds_and_at_every_change() -> None:
    now_s = 0.0
    stream = io.StringIO()
    with LiveProgress(stream, clock=lambda: now_s) as show:
        for step in range(12):  # 0.0 … 11.0 s
            now_s = float(step)
            show(RUNNING)
        now_s = 11.5
        show(Progress(state="RUNNING", stage="evaluate"))
        show(Progress(state="RUNNING", stage="evaluate", messages=("shard 1 [died]",)))
    lines = stream.getvalue().splitlines()
    assert [text.split(" | ")[0] for text in lines] == ["RUNNING train"] * 3 + ["RUNNING evaluate", "shard 1 [died]"]
    assert all("\x1b" not in text for text in lines)


def test_a_long_line_is_not_wrapped_for_log_files() -> None:
    stream = io.StringIO()
    with LiveProgress(stream) as show:
        show(RUNNING)
    assert stream.getvalue() == line(RUNNING) + "\n"


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with LiveProgress(stream, quiet=True) as show:
        show(Progress(state="RUNNING", stage="train", messages=("hello",)))
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_display_that_is_redrawn_and_then_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    seen = bytearray()

    def drain() -> None:
        try:
            while chunk := os.read(ours, 4096):
                seen.extend(chunk)
        except OSError:  # the other end was closed
            return

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(theirs, "w") as terminal, LiveProgress(terminal) as show:
        show(RUNNING)
        show(RUNNING)
    reader.join(timeout=10)
    os.close(ours)
    text = seen.decode()
    drawn = text.count("250,000 of 1,000,000 samples (25%)")
    assert drawn >= 2
    assert "2 trainers, 3 shards" in text
    assert text.count("\x1b[2K") >= 3 * drawn  # every drawing of three lines was erased, the last one too
