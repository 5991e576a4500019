"""The example of the transformer: workers under BSP train as plain SGD in one process does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `cargo xtask wheel --integrations` installs it")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import transformer

import slackline.torch


@pytest.mark.parametrize("workers", [2, 3])
def test_a_transformer_trained_by_workers_is_that_of_plain_sgd(workers: int) -> None:
    alone, losses = transformer.train_alone(60)
    together = transformer.train_by_workers(workers, 60)
    assert together.keys() == alone.keys()
    assert transformer.difference(alone, together) <= 1e-6
    # It has learned something, and a parameter that was left out would show: all have moved.
    assert sum(losses[-5:]) / 5 < 0.75 * losses[0]
    _, characters = transformer.corpus()
    first = slackline.torch.parameters(transformer.model(characters))
    assert all(float((alone[name] - first[name]).abs().max()) > 1e-6 for name in first)
