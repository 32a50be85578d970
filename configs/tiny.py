"""The embedded default: a tiny BERT learns the English text that every Python installation carries.

Command:   launch/local.sh --config=configs/tiny.py --workdir=runs/tiny
Hardware:  any computer; two CPU cores are enough. No network, no download.
Time:      8 to 9.5 minutes on two CPU cores, preparation of the corpus and evaluation included.
Result:    held-out MLM loss 5.46, 0.85 nats below the unigram loss of the same tokens; MLM accuracy
           0.18, NSP accuracy 0.745 on 1,024 pairs (Python 3.11; README.md has others).
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
            # A narrow model with 0.02 takes its first hundreds of steps to leave the unigram level.
            "model.initializer_range": 0.05,
            # Half a million tokens come round some fifteen times.
            "model.attention_dropout": 0.0,
            "optimizer.weight_decay": 0.1,
            # Without bias correction the first thousand steps would be far larger than stated.
            "optimizer.name": "adamw",
            "optimizer.beta2": 0.98,
            "optimizer.schedule": "linear_after_warmup",
            "optimizer.learning_rate": 2e-3,
            "optimizer.warmup_steps": 100,
            "train.steps": 2300,
            "train.log_every": 100,
            "train.eval_every": 575,
            "checkpoint.every": 250,
        },
    )
    return configs.with_argument(config, argument)
