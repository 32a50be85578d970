"""BERT-large, the paper's recipe: 900,000 steps at length 128, then 100,000 at length 512.

Command:   python -m bertjax.main --config=configs/large.py --workdir=runs/large
           python -m bertjax.main --config=configs/large.py:preset=phase2 \
               --config.init_from=runs/large --workdir=runs/large512
Hardware:  16 accelerators of a TPU v5e (4x4) or more, or 8 GPUs with 80 GB.
Time:      phase 1 is 5.5e19 FLOP (240.6 GFLOP a sequence): 12 hours at 40 % of the peak of 16 v5e.
           An estimate from arithmetic, not a measurement.
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
