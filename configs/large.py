"""BERT-large, the paper's recipe: 900,000 steps at length 128, then 100,000 at length 512.

Command:   python -m bertjax.main --config=configs/large.py --workdir=runs/large
           python -m bertjax.main --config=configs/large.py:preset=phase2 \
               --config.init_from=runs/large --workdir=runs/large512
Hardware:  16 accelerators of a TPU v5e (4x4), 7.5 GiB of 15.75 GiB a device in phase 1 and 11.6 in
           phase 2 (bertjax.plan), or 8 GPUs with 80 GB (7.2 GiB each in phase 1).
Time:      on that TPU at best 6.4 hours for phase 1 (25.8 ms a step, bound by memory) and 2.9 for
           phase 2 (105 ms): the rooflines of bertjax.plan, not a measurement: a real step is
           slower. Phase 1 is 5.5e19 FLOP (240.6 GFLOP a sequence), 4.9 hours at the peak.
Result:    MLM accuracy about 0.72 and more, NSP accuracy 0.97 on English Wikipedia and books
           (published runs). GLUE test scores of the paper: MNLI 86.7, SST-2 94.9, CoLA 60.5,
           MRPC F1 89.3.

Source: Devlin et al. 2019, appendix A.2.
"""

from ml_collections import config_dict

from bertjax import config as configs


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """L=24, H=1024, A=16."""
    return configs.published_recipe("large", argument, {"model.remat": "dots"})
