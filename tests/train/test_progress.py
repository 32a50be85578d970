"""The rates that a run shows, against a clock that a test moves."""

import pytest

from bertjax import config as configs
from bertjax.parallel import rate
from bertjax.tasks import pretrain
from bertjax.train import progress


def test_rates_are_of_the_time_that_steps_took(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    meter = progress.Meter(peak_flops=1000.0)
    for tokens, flops, seconds in ((10, 300, 1.0), (30, 100, 3.0)):
        now += seconds
        meter.add(tokens, flops)
    now += 50.0  # an evaluation
    meter.restart()
    assert meter.rates() == {"tokens_per_second": 10.0, "flops_share": 0.1}
    now += 2.0
    meter.add(10, 1000)
    assert meter.rates() == {"tokens_per_second": 5.0, "flops_share": 0.5}
    assert meter.summary() == ", 3 steps in 6 s, 8 tokens/s"


def test_no_share_of_unknown_flops():
    meter = progress.Meter()
    meter.add(10)
    assert set(meter.rates()) == {"tokens_per_second"}


def test_the_flops_of_a_step_by_hand():
    """BERT-base, rows of 128 tokens, 19 of them predicted; three times the forward pass."""
    config = configs.resolve(
        configs.update(
            configs.default_config(),
            {"model.vocab_size": 30522, "data.batch_size": 8},
        )
    )
    task = pretrain.without_data(config)
    layer = 128 * (4 * 768 * 768 + 2 * 768 * 3072 + 2 * 128 * 768)
    heads = 19 * (768 * 768 + 768 * 30522) + 768 * 768
    assert task.step_flops(task.batch_spec()) == 8 * 3 * 2 * (12 * layer + heads)


def test_the_yardstick_is_a_rate_of_this_machine():
    measured = rate.matmul_flops_per_second("float32")
    assert 1e8 < measured < 1e15
    assert rate.matmul_flops_per_second("float32") == pytest.approx(measured)
