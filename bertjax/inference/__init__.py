"""Questions put to a model, texts of any length, no dropout.

Results come in the order of the texts and in the form that `bertjax.predict` prints as JSON.
"""

from bertjax.inference.batching import Limits
from bertjax.inference.heads import answer, classify, tag
from bertjax.inference.inside import Inside, attentions
from bertjax.inference.language import check_texts, cosines, embed, fill_mask, score

__all__ = [
    "Inside",
    "Limits",
    "answer",
    "attentions",
    "check_texts",
    "classify",
    "cosines",
    "embed",
    "fill_mask",
    "score",
    "tag",
]
