"""A grid over L, H and A, in the manner of Devlin et al. 2019, table 6.

Command:   python -m bertjax.ablate --config=configs/ablate.py --workdir=runs/ablate \
               --config.data.source='books/*.md'
           python -m bertjax.ablate --config=configs/ablate.py:preset=paper --workdir=runs/table6 \
               --config.data.source=data/english --config.ablate.finetune='mnli; mrpc; sst2'
           python -m bertjax.ablate --config=configs/ablate.py:preset=glue --workdir=runs/glue \
               --config.init_from=CHECKPOINT
Hardware:  small: any computer, two CPU cores are enough. paper: as configs/large.py.
Time:      small: about 45 minutes of CPU time on 24 MB of books, all included: within half an hour
           on two free cores (an estimate; docs/ablations.md). paper: --plan says it.
Result:    small, on books: held-out perplexity 342, 155, 171 and 94 in the order of the variants,
           unigram 666 (docs/ablations.md). paper: the published perplexities of its six sizes are
           5.84, 5.24, 4.68, 3.99, 3.54 and 3.23.

Presets: small (the default), paper (the six sizes of table 6 with the recipe of configs/base.py,
phase 1), glue (fine-tuning alone: the settings of appendix A.3 on the nine tasks, the best chosen
on the development set).
"""

from ml_collections import config_dict

from bertjax import config as configs

SMALL = {
    # The widest takes half the rate of the others: at theirs it stays on the plateau of a model
    # that knows hardly more than how frequent tokens are; those of H=128 leave it after 2,000.
    "ablate.variants": "L1_H64_A1: L=1,H=64,A=1; L2_H128_A2: L=2,H=128,A=2; "
    "L4_H128_A2: L=4,H=128,A=2; L2_H256_A4: L=2,H=256,A=4,optimizer.learning_rate=1e-3",
    "data.source": "python_docs",
    "data.vocab": "train:4000",
    "data.seq_length": 64,
    "data.batch_size": 32,
    "data.eval_batch_size": 64,
    "data.eval_examples": 2048,
    # Minutes are too short to learn by heart what dropout would keep it from learning.
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "optimizer.name": "adamw",
    "optimizer.beta2": 0.98,
    "optimizer.schedule": "linear_after_warmup",
    "optimizer.learning_rate": 2e-3,
    # A share, so that every budget has its warm-up.
    "optimizer.warmup_ratio": 0.1,
    "train.steps": 3000,
    "train.log_every": 100,
    "checkpoint.every": 250,
    "checkpoint.keep": 1,
}
PAPER = {
    "ablate.variants": "L=3,H=768,A=12; L=6,H=768,A=3; L=6,H=768,A=12; L=12,H=768,A=12; "
    "L=12,H=1024,A=16; L=24,H=1024,A=16",
    "model.remat": "dots",
}
GLUE = configs.FINETUNE | {
    "task": "classify",
    "ablate.variants": "",
    "ablate.finetune": "glue",
    "ablate.grid": "optimizer.learning_rate=2e-5,3e-5,5e-5; train.epochs=2,3,4; "
    "data.batch_size=16,32; seed=0,1,2",
}
SMOKE = {
    "ablate.variants": "L=1,H=32,A=1; L=2,H=64,A=2",
    "ablate.grid": "",
    "ablate.amount": 0.0,
    "model.intermediate_size": 0,
}
SMOKE_GLUE = {
    "ablate.finetune": "rte",
    "ablate.grid": "optimizer.learning_rate=1e-4,1e-3",
}


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """The preset's grid over its recipe; 'smoke' shrinks it to two cells of a few steps."""
    items = [item.strip() for item in (argument or "").split(",")]
    if "preset=paper" in items:
        config = configs.published_recipe("base", "")
    else:
        config = configs.update(configs.default_config(), SMALL)
        if "preset=glue" in items:
            config = configs.default_config()
    presets = {"small": {}, "paper": PAPER, "glue": GLUE}
    config = configs.with_argument(config, argument, presets)
    if config.smoke:
        configs.update(config, SMOKE_GLUE if config.task == "classify" else SMOKE)
    return config
