"""The embedded default: a tiny BERT learns the English text that every Python installation carries.

Command:   launch/local.sh --config=configs/tiny.py --workdir=runs/tiny
Hardware:  any computer; two CPU cores are enough. No network, no download.
Time:      under 10 minutes on two cores, preparation of the corpus and evaluation included.
Result:    held-out MLM loss more than 1 nat below the unigram loss, NSP accuracy above 0.70
           (README.md has the measured figures).
"""

from ml_collections import config_dict

from bertjax import config as configs


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """L=2, H=128, A=2 on the topics and docstrings of the standard library."""
    config = configs.default_config()
    configs.update(
        config,
        {f"model.{name}": value for name, value in configs.SIZES["tiny"].items()}
        | {
            "data.source": "python_docs",
            "data.vocab": "train:8000",
            "data.seq_length": 128,
            "data.batch_size": 32,
            "data.eval_batch_size": 64,
            "data.eval_examples": 1024,
            # Minutes are too short to learn by heart what dropout would keep it from learning.
            "model.hidden_dropout": 0.0,
            "model.attention_dropout": 0.0,
            "optimizer.learning_rate": 1.5e-3,
            "optimizer.warmup_steps": 200,
            "train.steps": 2000,
            "train.log_every": 50,
            "train.eval_every": 1000,
            "checkpoint.every": 250,
        },
    )
    return configs.with_argument(config, argument)
