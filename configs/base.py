"""BERT-base, the paper's recipe: 900,000 steps at length 128, then 100,000 at length 512.

Command:   python -m bertjax.main --config=configs/base.py --workdir=runs/base
           python -m bertjax.main --config=configs/base.py:preset=phase2 \
               --config.init_from=runs/base --workdir=runs/base512
Hardware:  8 accelerators of a TPU v5e (2x4), 3.2 GiB of 15.75 GiB a device in phase 1 and 8.3 in
           phase 2 (bertjax.plan), or GPUs with 80 GB.
Time:      on that TPU at best 4.5 hours for phase 1 (18.0 ms a step, bound by memory) and 3.9 for
           phase 2 (140 ms): the rooflines of bertjax.plan, not a measurement: a real step is
           slower. Phase 1 is 1.6e19 FLOP (69.9 GFLOP a sequence), 2.8 hours at the peak.
Result:    MLM accuracy about 0.70 and NSP accuracy 0.97 on English Wikipedia and books (published
           runs). GLUE test scores of the paper: MNLI 84.6, SST-2 93.5, CoLA 52.1, MRPC F1 88.9.

Source: Devlin et al. 2019, appendix A.2. A list after the file name changes the size:
configs/base.py:num_layers=6,hidden_size=512,num_heads=8, or preset=tiny, mini, small, medium, base.
"""

from ml_collections import config_dict

from bertjax import config as configs


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """L=12, H=768, A=12."""
    return configs.published_recipe("base", argument)
