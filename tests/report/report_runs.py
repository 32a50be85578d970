"""Small workdirs as runs leave them, with texts that try to break out of a page."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bertjax.interop import workdir as workdirs
from bertjax.train.writers import Writers

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
from interop_models import published

SCRIPT = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
COMMENT = "<!--<script> hello \u2028 \u2029 &lt;b&gt; <b>fox</b> @@SCRIPT@@"
LINK = '<a href="javascript:window.hacked=1">dog</a> %{x} $x$ hello'
HOSTILE = [SCRIPT, COMMENT, LINK, "首都 is 中国 的 world", "hello 🦊 fox"]
LABELS = (SCRIPT, LINK, "中国")
METRIC = "loss</script><img src=x onerror=window.hacked=1>"


def write_figures(folder: Path, steps: int = 20, metric: str = METRIC) -> None:
    """metrics.jsonl of a run that trains `steps` steps and is evaluated every five."""
    writers = Writers(str(folder), start_step=0, evaluated=False)
    for step in range(1, steps + 1):
        writers.write(step, "train", {"loss": 4 / step, metric: step, "learning_rate": 0.1 * step})
        if step % 5 == 0:
            nan = float("nan") if step == 5 else 1.0
            writers.write(step, "validation", {"loss": 5 / step, "accuracy": nan})
    writers.close()


def change_config(folder: Path, **values: Any) -> None:
    """Set dotted keys, with __ for the dot, in config.json."""
    content = json.loads((folder / "config.json").read_text())
    for key, value in values.items():
        group, _, name = key.partition("__")
        if name:
            content["config"][group][name] = value
        else:
            content["config"][group] = value
    (folder / "config.json").write_text(json.dumps(content))


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def classifier(folder: Path, seed: int = 0) -> Path:
    """A finished run of a classifier whose every text and label is hostile."""
    model = dataclasses.replace(published(("classifier",), seed), labels=LABELS)
    workdirs.write(str(folder), model)
    examples = [{"text": f"{HOSTILE[i % 5]} {i}", "label": LABELS[i % 3]} for i in range(12)]
    write_lines(folder / "validation.jsonl", examples)
    change_config(
        folder, data__train="", data__validation=str(folder / "validation.jsonl"), seed=seed,
        data__text_column="text", data__label_column="label",
    )  # fmt: skip
    rows = []
    for index, example in enumerate(examples):
        guess = LABELS[(index + (index % 4 == 0)) % 3]
        sure = 0.5 + 0.02 * index
        others = {label: (1 - sure) / 2 for label in LABELS}
        rows.append({"index": index, "label": example["label"], "prediction": guess,
                     "probabilities": others | {guess: sure}})  # fmt: skip
    write_lines(folder / "predictions" / "validation.jsonl", rows)
    write_figures(folder)
    end = {
        "step": 20,
        "results": {"validation": {"loss": 0.25, "accuracy": 0.75}},
        "summary": SCRIPT,
    }
    (folder / "finished.json").write_text(json.dumps(end))
    return folder
