"""FLOPs of the model by arithmetic: two for each multiply and add of a matrix product.

What the mathematics needs, whatever a program recomputes or pads; elementwise work, about one
part in a hundred, is left out. Letters as in `bertjax.model.bert`.
"""

from __future__ import annotations

from bertjax.model.config import BertConfig

# The backward pass of a product is two products of the same size.
BACKWARD = 2


def layer_flops(config: BertConfig, length: int) -> int:
    """Forward pass of one encoder layer over a row of `length` tokens: the four projections,
    scores and weighted mean, and the feed-forward pair."""
    c = config
    projections = 4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size
    return 2 * length * (projections + 2 * length * c.hidden_size)


def masked_lm_flops(config: BertConfig, predictions: int) -> int:
    """Forward pass of the MLM head over `predictions` positions."""
    c = config
    return 2 * predictions * c.hidden_size * (c.hidden_size + c.vocab_size)


def pooler_flops(config: BertConfig, pooled: int = 1) -> int:
    """Forward pass of the pooler over `pooled` [CLS] positions."""
    return 2 * pooled * config.hidden_size**2


def train_flops(
    config: BertConfig, rows: int, length: int, *, predictions: int = 0, pooled: int = 1
) -> int:
    """One training step over `rows` rows: forward and backward, frozen layers forward only.

    predictions: places a row that the MLM head scores; 0 for a model without one. The other
    heads are a few columns wide and not counted.
    """
    layer = layer_flops(config, length)
    heads = masked_lm_flops(config, predictions) + pooler_flops(config, pooled)
    trained = (config.num_layers - config.frozen_layers) * layer + heads
    return rows * ((1 + BACKWARD) * trained + config.frozen_layers * layer)
