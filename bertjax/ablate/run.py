"""The whole of an ablation: cells, one corpus for all of them, each cell in turn, one table."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping

from ml_collections import config_dict

from bertjax import cli, interop
from bertjax import config as configs
from bertjax.ablate import budget, cells, finetune, grid, table
from bertjax.ablate.cells import Stop
from bertjax.ablate.grid import Cell
from bertjax.data import builder
from bertjax.data.labelled import is_dataset
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks.corpus import corpus_folder, prepare_data
from bertjax.tasks.sources import split_sources
from bertjax.train import workdir as workdirs

CORPORA = "corpora"
# What a prepared corpus depends on.
_CORPUS_KEYS = ("data.source", "data.vocab", "data.lower_case", "data.language", "data.held_out")
# What decides the held-out rows and masks, beside the corpus.
_ROW_KEYS = ("data.seq_length", "data.nsp", "data.whole_word", "data.eval_examples", "init_from")


@dataclasses.dataclass
class Ablation:
    """The cells of a config, in the order in which they are trained.

    `tuned` are the fine-tunings, `notes` says of impossible cells why they are left out.
    """

    config: config_dict.ConfigDict
    pretrained: list[Cell]
    tuned: list[Cell]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        """Every cell, each pretraining followed by its fine-tunings."""
        if not self.pretrained:
            return self.tuned
        return [
            cell
            for first in self.pretrained
            for cell in (first, *(c for c in self.tuned if c.parent == first.name))
        ]


def expand(config: config_dict.ConfigDict) -> Ablation:
    """The cells of a config; nothing is read but config files.

    Raises:
        UserError: a setting is not understood, a cell is impossible, or two are the same.
    """
    ablate = config.ablate
    if not (ablate.variants or ablate.grid or ablate.finetune):
        raise UserError(
            "there is nothing to compare: set --config.ablate.variants or --config.ablate.grid, as "
            "configs/ablate.py does"
        )
    if config.train.seeds > 1:
        raise UserError(
            f"config.train.seeds={config.train.seeds}: in an ablation seeds are repetitions, "
            "written seed=0,1,2 in ablate.grid or ablate.finetune_grid"
        )
    for key in ("impossible", "budget"):
        choices = configs.BY_KEY[f"ablate.{key}"].choices
        if ablate[key] not in choices:
            raise UserError(f"config.ablate.{key}={ablate[key]} is not one of {', '.join(choices)}")
    skipped: list[str] = []
    if config.task == "pretrain":
        first = grid.check_possible(grid.primary_cells(config), ablate.impossible, skipped)
        second = finetune.after_pretraining(config, first)
    else:
        first, second = [], finetune.alone(config)
        if ablate.budget != "steps" or ablate.amount:
            raise UserError(
                f"config.ablate.budget={ablate.budget}: fine-tunings are given steps or epochs, "
                "since their rows differ in length"
            )
    second = grid.check_possible(second, ablate.impossible, skipped)
    for cell in second:
        if not cell.config["data.validation"] and not config.smoke:
            raise UserError(
                f"the cell {cell.name} has no development set, on which settings are chosen: set "
                "data.validation"
            )
    if not first + second:
        raise UserError(f"every cell is impossible: {skipped[0]}")
    grid.check_distinct([*first, *second])
    return Ablation(config, first, second, skipped)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What the cells of one corpus read: data.source, its vocabulary's size, and the sizes that
    the checkpoint to start from decides."""

    source: str
    vocab_size: int
    sizes: Mapping[str, object]


def prepare_corpus(workdir: str, cell: Cell) -> Corpus:
    """Prepare the raw source of a cell in the ablation's folder, once for all cells that share it.

    A source that is prepared already is taken as it is.
    """
    config = cell.resolved()
    published = interop.read_checkpoint(config.init_from) if config.init_from else None
    tokenizer = published.tokenizer if published else None
    wanted = [cell.config[key] for key in _CORPUS_KEYS] + [config.init_from]
    folder = f"{workdir}/{CORPORA}/{hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]}"
    prepare_data(config, folder, tokenizer)
    source = str(corpus_folder(config, folder))
    vocabulary = Tokenizer.load(builder.open_prepared(source)).vocab_size
    sizes = {}
    if published:
        sizes = {f"model.{key}": published.config[key] for key in configs.SIZE_KEYS}
    return Corpus(source, vocabulary, sizes)


def with_corpora(ablation: Ablation, workdir: str) -> dict[str, budget.Cost]:
    """Prepare what the pretraining cells read, point them at it, and give them their steps.

    Returns the cost of each pretraining cell by name.
    """
    found: dict[str, Corpus] = {}
    costs: dict[str, budget.Cost] = {}
    ready = []
    for cell in ablation.pretrained:
        key = repr([cell.config[key] for key in (*_CORPUS_KEYS, "init_from")])
        if key not in found:
            found[key] = prepare_corpus(workdir, cell)
        corpus = found[key]
        config = dict(cell.config)
        if corpus.source.startswith(f"{workdir}/"):
            config["data.source"] = cells.PLACEHOLDER + corpus.source.removeprefix(workdir)
            config["data.vocab"] = ""
        ready.append(dataclasses.replace(cell, config=config))
        sized = dataclasses.replace(cell, config=cell.config | corpus.sizes)
        costs[cell.name] = budget.cost(sized.resolved(), corpus.vocab_size)
    ablation.pretrained = budget.with_budget(ablation.config, ready, costs) if ready else []
    return costs


def run(
    config: config_dict.ConfigDict, workdir: str, environment: Mapping[str, str]
) -> tuple[int, table.Table]:
    """Train what is not trained yet and write the table.

    Returns the exit code, 1 where a cell has failed and 143 or 130 after a signal, and the table.

    Raises:
        UserError: the grid, the corpus or the folder is wrong; nothing has been trained then.
    """
    if "://" in workdir:
        raise UserError(f"--workdir={workdir}: an ablation needs a folder of this machine")
    workdir = os.path.normpath(workdir)
    ablation = expand(config)
    for sentence in ablation.notes:
        configs.stderr(f"skipped: {sentence}")
    with workdirs.lock(workdir):
        with cli.leaving_on_sigterm():
            costs = with_corpora(ablation, workdir)
        _check_files([x for x in ablation.tuned if not cells.is_finished(workdir, x.name)])
        gone = cells.check_unchanged(workdir, ablation.cells)
        if gone:
            configs.stderr(f"no longer in the grid, left alone: {', '.join(gone)}")
        stop = Stop()
        with stop.entered():
            train_all(ablation, workdir, environment, stop, costs)
        made = write_table(ablation, workdir, costs)
    if stop.signal is not None:
        configs.stderr("stopped; the same command goes on from here")
        return 128 + stop.signal, made
    failed = [row["cell"] for row in made.rows if row["state"] == cells.FAILED]
    if failed:
        configs.stderr(
            f"{len(failed)} of {len(made.rows)} cells have failed; the same command tries them anew"
        )
    return int(bool(failed)), made


def _check_files(tuned: list[Cell]) -> None:
    """UserError where a file of a fine-tuning is not there: before the pretraining, not after."""
    for cell in tuned:
        if cell.config["smoke"]:
            continue
        for split, source in split_sources(cell.resolved()).items():
            local = "://" not in source and not is_dataset(source)
            if local and not os.path.exists(os.path.expanduser(source)):
                raise UserError(f"the cell {cell.name}: no file {source} (data.{split})")


def train_all(
    ablation: Ablation,
    workdir: str,
    environment: Mapping[str, str],
    stop: Stop,
    costs: Mapping[str, budget.Cost],
) -> None:
    """Each cell in turn, until a signal comes; one that fails does not stop the others."""
    order = ablation.cells
    for cell in order:
        if not cells.is_finished(workdir, cell.name):
            cells.write(workdir, cell)
    for number, cell in enumerate(order, 1):
        which = f"cell {number} of {len(order)}, {cell.name}"
        if cells.is_finished(workdir, cell.name):
            configs.stderr(f"{which}: finished before")
            continue
        if stop.signal is not None:
            return
        if cell.parent and not cells.is_finished(workdir, cell.parent):
            cells.write(
                workdir, cell, state=cells.FAILED, sentence=f"not begun: {cell.parent} has failed"
            )
            configs.stderr(f"{which}: not begun, since {cell.parent} has failed")
            continue
        configs.stderr(f"{which}: running; {cells.path_of(workdir, cell.name) / cells.LOG}")
        cells.run(workdir, cell, environment, stop)
        row = next(r for r in write_table(ablation, workdir, costs).rows if r["cell"] == cell.name)
        configs.stderr(f"{which}: {table.outcome(row)}")


def write_table(ablation: Ablation, workdir: str, costs: Mapping[str, budget.Cost]) -> table.Table:
    """Write ablation.md, .csv and .json of what there is by now."""
    about, notes = "", list(ablation.notes)
    if ablation.pretrained:
        about = budget.text(ablation.config, ablation.pretrained, costs)
        notes += _not_comparable(ablation.pretrained)
    made = table.make(workdir, ablation.pretrained, ablation.tuned, costs, about, notes)
    table.write(workdir, made)
    return made


def _not_comparable(pretrained: list[Cell]) -> list[str]:
    """A warning where the cells are not evaluated on the same rows."""
    differ = [
        key for key in (*_CORPUS_KEYS, *_ROW_KEYS) if any(key in cell.varied for cell in pretrained)
    ]
    if not differ:
        return []
    return [
        f"cells that differ in {', '.join(differ)} are not evaluated on the same tokens: their "
        "perplexities cannot be compared"
    ]
