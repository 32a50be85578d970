"""Looks at the figures of a run and says once what people usually find out days later."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

# A run must have had so many steps before it can be called stuck.
PATIENCE = 1000
_DECAY = 0.9  # of the moving averages, per look


class Watch:
    """Warnings about a run that learns nothing or blows up; each is said once.

    Args:
      chance: what a model that ignores its input reaches, by name of a mean ('mlm_loss':
        unigram entropy; 'nsp_accuracy': 0.5). A name that ends in 'loss' is to fall below, any
        other to rise above.
      say: where a warning goes.
    """

    def __init__(self, chance: Mapping[str, float], say: Callable[[str], None]) -> None:
        self._chance, self._say = chance, say
        self._averages: dict[str, float] = {}
        self._looks = 0
        self._said: set[str] = set()

    def look(self, step: int, figures: Mapping[str, float]) -> None:
        """One line of training figures."""
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        self._gradient(step, finite.get("grad_norm", 0.0))
        for name, value in finite.items():
            before = self._averages.get(name, value)
            self._averages[name] = _DECAY * before + (1 - _DECAY) * value
        self._looks += 1
        if step < PATIENCE or self._looks < 10:
            return
        for name, level in self._chance.items():
            if name in self._averages and self._at_chance(name, level):
                self._warn(
                    name,
                    f"step {step}: {name} is {self._averages[name]:.3g} on average, and a model "
                    f"that ignores its input reaches {level:.3g}. Usual causes: a learning rate "
                    "too high or too low for the batch size, a batch too small, labels that do "
                    "not belong to their inputs, or duplicated text (see the data report)",
                )

    def _at_chance(self, name: str, level: float) -> bool:
        average = self._averages[name]
        return average > 0.98 * level if name.endswith("loss") else average < level + 0.02

    def _gradient(self, step: int, norm: float) -> None:
        usual = self._averages.get("grad_norm", math.inf)
        if self._looks >= 10 and norm > 20 * usual:
            self._warn(
                "grad_norm",
                f"step {step}: the gradient norm is {norm:.3g}, {norm / usual:.0f} times the "
                "usual. Usual causes: a learning rate too high, a warm-up too short, "
                "optimizer.grad_clip 0, or a batch of broken text",
            )

    def _warn(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._say(f"warning: {text}")
