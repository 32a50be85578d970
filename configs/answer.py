"""Fine-tune extractive question answering on data in SQuAD's form, version 1.1 or 2.0.

Command:   python -m bertjax.main --config=configs/answer.py --workdir=runs/squad \
               --config.init_from=CHECKPOINT --config.data.train=train-v1.1.json \
               --config.data.validation=dev-v1.1.json
Hardware:  any; a small model runs on a laptop's CPU.
Time:      docs/finetuning.md has measured times.
Result:    docs/finetuning.md has measured figures.

Whether questions may have no answer is seen from the data. --config.data.language=zh scores by
characters, as CMRC 2018 does.
"""

from ml_collections import config_dict

from bertjax import config as configs


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """Windows of 384 tokens; neighbours share 128 (transformers calls that doc_stride)."""
    config = configs.update(
        configs.default_config(),
        configs.FINETUNE
        | {
            "task": "answer",
            "data.seq_length": 384,
            "data.window_overlap": 128,
            "optimizer.learning_rate": 3e-5,
            "train.epochs": 2.0,
        },
    )
    return configs.with_argument(config, argument)
