"""What the page shows of a run's model: attention weights and vectors of texts."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax import inference
from bertjax.api import Bert
from bertjax.errors import UserError
from bertjax.inference.batching import Row
from bertjax.inference.inside import look_inside, pair_rows
from bertjax.report.gather import number
from bertjax.report.held_out import Texts
from bertjax.report.predictions import shortened

# Attention: weights are stored in 255 steps, one byte each.
STEPS = 255
LONGEST_ROW = 48  # tokens of a text whose attention is shown
DEFAULT_TEXTS, MOST_TEXTS = 4, 12
VECTORS, MATRIX = 200, 40  # texts on the map and in the cosine matrix
FEWEST_ON_MAP = 5
PERPLEXITY = 30
HOVER_CHARACTERS = 120


def packed(data: bytes) -> str:
    """gzip and base64, which a page can hold and unpack."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def shorten(row: Row, size: int, sep_id: int) -> Row:
    """`row` with at most `size` tokens: the longer text of a pair is cut first, [SEP] are kept."""
    if len(row.ids) <= size:
        return row
    first, second = row.ids[1 : row.second - 1], row.ids[row.second : -1]
    room = size - (2 if row.second == len(row.ids) else 3)
    while len(first) + len(second) > room:
        (first if len(first) >= len(second) else second).pop()
    ids = [row.ids[0], *first, sep_id]
    cut = Row(row.text, ids, len(ids))
    if row.second < len(row.ids):
        cut.ids = [*ids, *second, sep_id]
    return cut


def attention(
    bert: Bert, texts: Texts, budget: int, warn: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Attention of every layer and head for a few texts, within `budget` bytes.

    Returns:
        layers, heads, texts [{tokens, second, start (its first byte)}], notes; and the weights as
        `packed` bytes: for each text [L, A, S, S], weight * 255, rounded.
    """
    few = texts.spread(MOST_TEXTS if texts.given else DEFAULT_TEXTS)
    depth, heads = bert.config.num_layers, bert.config.num_heads
    # At least two texts should fit: deep models get shorter rows.
    fitting = int((budget / (2 * depth * heads)) ** 0.5)
    size = max(8, min(LONGEST_ROW, fitting, bert.config.max_position_embeddings))
    rows = pair_rows(bert, few.texts, few.pairs, warn=warn)
    cut = sum(len(row.ids) > size for row in rows)
    sep = bert.require_tokenizer().sep_id
    shown: list[dict[str, Any]] = []
    weights: list[bytes] = []
    used = 0
    for row in rows:
        row = shorten(row, size, sep)
        need = depth * heads * len(row.ids) ** 2
        if shown and used + need > budget:
            break
        inside = look_inside(bert, [row])
        table = np.stack([layer[0] for layer in inside.attentions])
        if not np.isfinite(table).all():
            raise UserError("the weights give attention that is not finite: the run has diverged")
        shown.append({"tokens": inside.tokens[0], "second": inside.second[0], "start": used})
        weights.append(np.rint(table * STEPS).astype(np.uint8).tobytes())
        used += need
    notes = []
    if cut:
        notes.append(f"{cut} of {len(rows)} texts were cut to their first {size} tokens.")
    if len(shown) < len(texts.texts):
        notes.append(f"{len(shown)} of {len(texts.texts):,} texts are shown.")
    return {"layers": depth, "heads": heads, "texts": shown, "notes": notes}, packed(
        b"".join(weights)
    )


def vectors(bert: Bert, texts: Texts, warn: Callable[[str], None]) -> dict[str, Any]:
    """A map of sentence vectors and their cosines.

    The vector of a text is the mean of the last layer over its tokens; the map is t-SNE
    (van der Maaten and Hinton 2008) as scikit-learn does it, started from the first two
    principal components, with a fixed seed.

    Returns:
        texts, labels, x and y (None: too few texts for a map), perplexity, cosines [n, n], notes.
    """
    some = texts.spread(VECTORS)
    joined = some.texts
    if some.pairs is not None:  # the encoder reads them as one text here
        joined = [f"{a} {b}" for a, b in zip(some.texts, some.pairs, strict=True)]
    limits = inference.Limits.of(bert)
    table = np.stack(list(inference.embed(bert, joined, limits=limits, warn=warn)))
    notes = []
    if len(some.texts) < len(texts.texts):
        notes.append(f"{len(some.texts):,} of {len(texts.texts):,} texts, evenly spread.")
    few = min(MATRIX, len(table))
    kept = sorted(range(len(table)), key=lambda i: some.labels[i])  # labels side by side
    kept = [kept[i * len(kept) // few] for i in range(few)]
    cosines = inference.cosines(table[kept])
    found = {
        "texts": [_hover(text) for text in joined],
        "labels": some.labels,
        "matrix": kept,
        "cosines": [[number(float(value)) for value in row] for row in cosines],
        "x": None,
        "y": None,
        "perplexity": None,
        "notes": notes,
    }
    if len(np.unique(table, axis=0)) < FEWEST_ON_MAP:
        notes.append(f"A map needs at least {FEWEST_ON_MAP} different texts.")
        return found
    perplexity = min(PERPLEXITY, (len(table) - 1) / 3)
    places = tsne(table, perplexity)
    found |= {"x": [number(float(v)) for v in places[:, 0]], "perplexity": number(perplexity)}
    return found | {"y": [number(float(v)) for v in places[:, 1]]}


def tsne(table: np.ndarray, perplexity: float) -> np.ndarray:
    """Vectors [n, H] as points [n, 2]."""
    from sklearn.manifold import TSNE  # slow to import

    if not np.isfinite(table).all():
        raise UserError("the vectors hold NaN or infinity.")
    model = TSNE(2, perplexity=perplexity, init="pca", random_state=0)
    return model.fit_transform(table.astype(np.float64))


def _hover(text: str) -> str:
    text = shortened(text)
    return text if len(text) <= HOVER_CHARACTERS else text[: HOVER_CHARACTERS - 1] + "…"
