"""Fine-tune a classifier or a regressor on labelled texts or pairs.

Command:   python -m bertjax.main --config=configs/classify.py --workdir=runs/sentiment \
               --config.init_from=CHECKPOINT --config.data.train=train.tsv \
               --config.data.validation=dev.tsv --config.data.test=test.tsv
           python -m bertjax.main --config=configs/classify.py:preset=mrpc \
               --config.init_from=CHECKPOINT --workdir=runs/mrpc
Hardware:  any; a small model runs on a laptop's CPU.
Time:      docs/finetuning.md has measured times.
Result:    docs/finetuning.md has measured figures.

Presets: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli (the GLUE tasks as TFDS prepares them;
--config.data.train=FILE takes the TSV files instead).
"""

from ml_collections import config_dict

from bertjax import config as configs
from bertjax.tasks import glue


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """Learning rate and batch as in Devlin et al. 2019, A.3."""
    config = configs.update(configs.default_config(), configs.FINETUNE | {"task": "classify"})
    return configs.with_argument(config, argument, glue.presets())
