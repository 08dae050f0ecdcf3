from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from targets.models import Model
from tests.targets.decoder.driving import drain, opened, request, submit, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is at hand"),
]


def synchronisations(act: Callable[[], object]) -> int:
    """How often `act` makes the host wait for the device, as torch reports it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            act()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


def test_a_step_waits_for_the_device_at_most_once(tiny: Model) -> None:
    assert synchronisations(torch.ones(1, device="cuda").tolist) == 1
    decoder = opened(tiny, device="cuda", dtype="float32")
    submit(decoder, request(1, 2, 3, new=6), request(4, new=6))
    decoder.step()  # warms the kernels up
    submit(decoder, request(5, 6, new=4), start=2)
    counts = [synchronisations(decoder.step) for _ in range(3)]  # one with a prompt in it, two of decodes only
    assert max(counts) <= 1


def test_the_device_answers_as_the_host_does(tiny: Model) -> None:
    asked = [request(1, 2, 3, new=6), request(*range(20), new=4), request(7, new=8)]
    answers = []
    for device in ("cpu", "cuda"):
        decoder = opened(tiny, device=device, dtype="float64", slots=2)
        answers.append(tokens(submit(decoder, *asked) + drain(decoder)))
    assert answers[0] == answers[1]
