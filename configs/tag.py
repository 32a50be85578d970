"""Fine-tune a tagger: entities, parts of speech, word segmentation.

Command:   python -m bertjax.main --config=configs/tag.py --workdir=runs/entities \
               --config.init_from=CHECKPOINT --config.data.train=train.conll \
               --config.data.validation=dev.conll --config.data.test=test.conll
Hardware:  any; a small model runs on a laptop's CPU.
Time:      docs/finetuning.md has measured times.
Result:    docs/finetuning.md has measured figures.

Files are CoNLL columns (first column the word, last column the label; another by
--config.data.text_column and label_column) or .jsonl with lists `words` and `labels`.
"""

from ml_collections import config_dict

from bertjax import config as configs


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """Learning rate and batch as in Devlin et al. 2019, A.3."""
    config = configs.update(
        configs.default_config(),
        configs.FINETUNE
        | {
            "task": "tag",
            "data.text_column": "words|tokens|0",
            "data.label_column": "labels|tags|ner_tags|-1",
        },
    )
    return configs.with_argument(config, argument)
