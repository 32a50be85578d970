"""The config of one cell, for any front door: --config=.../bertjax/ablate/cell.py:CELL_FOLDER."""

from ml_collections import config_dict

from bertjax import config as configs
from bertjax.ablate import cells


def get_config(argument: str = "") -> config_dict.ConfigDict:
    """The config in CELL_FOLDER/cell.json."""
    return configs.update(configs.default_config(), cells.read_config(argument))
