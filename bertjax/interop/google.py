"""Google's TF1 releases: bert_config.json, vocab.txt and a TensorFlow 1 checkpoint."""

from __future__ import annotations

import pathlib
import re

from bertjax.errors import UserError
from bertjax.interop.huggingface import read_config
from bertjax.interop.names import GOOGLE
from bertjax.interop.published import Published, assemble
from bertjax.interop.tensor_bundle import Bundle
from bertjax.interop.vocabulary import load_tokenizer, without_padding
from bertjax.interop.weights import read_json

CONFIG = "bert_config.json"
_SHARD = re.compile(r"\.data-\d+-of-\d+$")
# Variables of the training program that belong to no weight.
_STATE = re.compile(r"(^|/)(global_step|beta[12]_power|loss_scale|good_steps)$")


def find_prefix(path: pathlib.Path) -> pathlib.Path | None:
    """The checkpoint's prefix from a prefix, one of its files or its folder; None if there is none.

    Raises:
        UserError: a folder holds several checkpoints and no file `checkpoint` says which.
    """
    name = _SHARD.sub("", path.name).removesuffix(".index").removesuffix(".meta")
    if name and path.with_name(f"{name}.index").is_file():
        return path.with_name(name)
    if not path.is_dir():
        return None
    found = sorted(path.glob("*.index"))
    if len(found) > 1 and (path / "checkpoint").is_file():
        text = (path / "checkpoint").read_text(errors="replace")
        latest = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
        chosen = path / (pathlib.PurePath(latest[1]).name + ".index") if latest else None
        found = [chosen] if chosen in found else found
    if len(found) > 1:
        names = ", ".join(file.name.removesuffix(".index") for file in found)
        raise UserError(f"{path} holds several checkpoints ({names}); name one of them.")
    return found[0].with_name(found[0].name.removesuffix(".index")) if found else None


def read(path: str) -> Published:
    """A Google TF1 checkpoint, given by prefix, .index file or folder.

    Optimizer slots are ignored and counted in `notes`. Heads: MLM and NSP of pretraining, the
    output layers of run_classifier.py and run_squad.py. bert_config.json has no layer_norm_eps:
    it is 1e-12. Its hidden_act 'gelu' is read as the exact form (see docs/checkpoints.md).

    Raises:
        UserError: files are missing or damaged, are of TensorFlow 2, or contradict the config.
    """
    prefix = find_prefix(pathlib.Path(path).expanduser())
    if prefix is None:
        raise UserError(f"{path} is no TensorFlow checkpoint: there is no .index file.")
    bundle = Bundle(prefix)
    where = str(prefix.parent / CONFIG)
    config = read_config(read_json(prefix.parent / CONFIG), where)
    weights, slots, state = {}, 0, 0
    for name in bundle.entries:
        if _STATE.search(name):
            state += 1
        elif name.rpartition("/")[0] in bundle.entries:  # adam_m and the like, below its weight
            slots += 1
        else:
            weights[name] = bundle.read(name)
    params, coverage = assemble(
        weights, GOOGLE, config, ("mlm", "nsp", "classifier", "span"), str(prefix)
    )
    tokenizer, remarks = load_tokenizer(prefix.parent, config["vocab_size"])
    config, params, coverage = without_padding(config, params, coverage, tokenizer)
    labels = None
    if "classifier" in params:
        labels = tuple(f"LABEL_{i}" for i in range(len(params["classifier"]["dense"]["bias"])))
        remarks = (*remarks, "Google's checkpoints do not name their classes: LABEL_0, ...")
    return Published(
        source=path,
        config=config,
        params=params,
        tokenizer=tokenizer,
        labels=labels,
        problem_type="regression" if labels is not None and len(labels) == 1 else "single_label",
        coverage=coverage,
        notes=(f"{slots} optimizer slots and {state} counters were ignored", *remarks),
    )
