"""metrics.jsonl: whole lines, cut back to a checkpoint; progress and warnings as text."""

import io
import json
import math
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from bertjax.errors import UserError
from bertjax.train.progress import Progress, duration, figures_text
from bertjax.train.watch import PATIENCE, Watch
from bertjax.train.writers import Writers, cut_back


def line(step: int, split: str = "train") -> str:
    return json.dumps({"step": step, "split": split, "loss": 1.0}) + "\n"


RUN = [line(1), line(2), line(2, "validation"), line(2, "test"), line(3)]


@pytest.mark.parametrize(
    "step, evaluated, lines",
    [(0, False, 0), (1, False, 1), (2, True, 4), (2, False, 2), (3, False, 5), (9, False, 5)],
)
def test_cut_back(step, evaluated, lines):
    assert cut_back(RUN, step, evaluated) == RUN[:lines]


@pytest.mark.parametrize("half", ['{"step": 4, "spl', '{"step": 4, "split": "train"}', "null\n"])
def test_half_lines_go(half):
    assert cut_back([*RUN, half], 9, True) == RUN


def test_a_resumed_file_has_no_gaps_and_no_repeats(tmp_path):
    for start, end in ((0, 7), (4, 9)):
        writers = Writers(str(tmp_path), start_step=start, evaluated=False)
        for step in range(start + 1, end + 1):
            writers.write(step, "train", {"loss": 1 / step, "bad": math.nan})
        writers.close()
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write('{"step":')  # killed in the middle of a line
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(text) for text in lines[:-1]]
    assert [entry["step"] for entry in entries] == list(range(1, 10))
    assert entries[3] == {"step": 4, "split": "train", "loss": 0.25, "bad": None}


def events(path) -> list[Event]:
    """The records of an event file: length, checksum, bytes, checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard_files(tmp_path):
    writers = Writers(str(tmp_path), start_step=4, evaluated=False)
    writers.write(5, "train", {"loss": 0.5, "grad_norm": 2.0})
    writers.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    version, session, *scalars = events(path)
    assert version.file_version == "brain.Event:2"
    assert session.step == 5 and session.session_log.status == 1  # START: purges from step 5 on
    assert [(e.step, e.summary.value[0].tag, e.summary.value[0].simple_value) for e in scalars] == [
        (5, "train/loss", 0.5),
        (5, "train/grad_norm", 2.0),
    ]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/metrics.jsonl"):
        Writers(str(tmp_path / "file"), start_step=0, evaluated=False)


def test_progress_without_a_terminal_is_plain_lines():
    stream = io.StringIO()
    progress = Progress(stream, 10, 0)
    progress.step(3, 12.0)
    progress.doing("evaluating")
    progress.say("a [bold]line[/bold]")
    progress.close()
    assert stream.getvalue() == "a [bold]line[/bold]\n"
    Progress(None, 10, 0).say("nobody listens")


def test_a_bar_on_a_terminal_shows_the_time_left():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream, 10, 0)
    progress.step(3, 75.0)
    progress.say("a [bold]line[/bold]")
    progress.close()
    assert "1 min 15 s left" in stream.getvalue() and "3/10" in stream.getvalue()
    assert "a [bold]line[/bold]\n" in stream.getvalue()


def test_texts():
    assert [duration(s) for s in (0.4, 59, 60, 3599, 3600 * 26 + 61)] == [
        "0 s", "59 s", "1 min 00 s", "59 min 59 s", "26 h 01 min",
    ]  # fmt: skip
    assert figures_text({"loss": 7.12345, "rate": 1e-5, "tokens": 12345.6, "zero": 0.0}) == (
        "loss 7.123  rate 1.0e-05  tokens 12,346  zero 0"
    )


def watch_run(figures, looks=30, every=100):
    said: list[str] = []
    watch = Watch({"mlm_loss": 6.3, "nsp_accuracy": 0.5}, said.append)
    for look in range(1, looks + 1):
        watch.look(look * every, figures(look))
    return said


def test_a_stuck_run_is_warned_of_once():
    said = watch_run(lambda look: {"mlm_loss": 6.35, "nsp_accuracy": 0.505, "grad_norm": 1.0})
    assert len(said) == 2
    assert "mlm_loss is 6.35" in said[0] and f"step {PATIENCE}" in said[0]
    assert "nsp_accuracy" in said[1]


def test_a_healthy_run_is_left_alone():
    assert not watch_run(
        lambda look: {
            "mlm_loss": 8 / look**0.3,
            "nsp_accuracy": min(0.5 + look / 50, 0.9),
            "grad_norm": 3 if look % 2 else 1,
        }
    )


def test_an_exploding_gradient_is_warned_of():
    said = watch_run(lambda look: {"grad_norm": 500.0 if look == 20 else 1.0})
    assert len(said) == 1 and "500 times the usual" in said[0] and "step 2000" in said[0]
