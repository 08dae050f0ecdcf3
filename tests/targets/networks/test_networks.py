"""Networks with an encoder: what a token stands for, and that the modules around transformers' own change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from targets.models import REACTIVITY_MIN, find_model, reactivity
from targets.networks import NETWORKS, crossing, tiny
from targets.networks.items import Films, Grids, Pictures
from targets.networks.pictured import PATCHES
from targets.tiny import VOCABULARY

ITEMS = [name for name in NETWORKS if find_model(name).plan.family == "encoder"]
LENGTHS = (3, 40, 17, 1)


def network(name: str) -> Any:
    return find_model(name).load("float64", "float64", "cpu")


def some_ids(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, columns), generator=torch.Generator().manual_seed(5))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).abs().max()) < 1e-9


@pytest.mark.parametrize("name", ITEMS)
@torch.inference_mode()
def test_an_item_in_a_padded_batch_is_answered_as_alone_whatever_stands_behind_it(name: str) -> None:
    built, lengths = network(name), torch.tensor(LENGTHS)
    ids = some_ids(len(LENGTHS), max(LENGTHS))
    together = built(input_ids=ids, lengths=lengths)
    other = torch.where(torch.arange(ids.shape[1]) < lengths[:, None], ids, (ids + 1) % VOCABULARY)
    assert torch.equal(built(input_ids=other, lengths=lengths), together)
    for row, length in enumerate(LENGTHS):
        assert close(built(input_ids=ids[row : row + 1, :length], prompt_tokens=length)[0], together[row : row + 1])


@pytest.mark.parametrize("name", ITEMS)
@torch.inference_mode()
def test_what_is_answered_behind_a_prompt_is_the_answer_to_the_longer_item(name: str) -> None:
    built, ids = network(name), some_ids(2, 7)
    answers = built(input_ids=ids, prompt_tokens=5)
    assert answers.shape == (2, 3, VOCABULARY)
    for index, end in enumerate((5, 6, 7)):
        assert close(built(input_ids=ids[:, :end], prompt_tokens=end)[:, 0], answers[:, index])


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_reacts_to_its_prompt(name: str) -> None:
    changed, tried = reactivity(network(name), VOCABULARY)
    assert changed >= REACTIVITY_MIN * tried


@torch.inference_mode()
def test_the_nth_token_paints_the_nth_patch_and_the_last_ones_count_where_there_are_too_many() -> None:
    built: Grids = network("tiny-vit")
    ids = some_ids(1, 70)
    painted, here = built.lay_out(ids[:, :3], torch.tensor([3]))
    assert torch.equal(painted[0, :3], built.paint[ids[0, :3]])
    assert not painted[0, 3:].any()
    assert here[0].tolist() == [True] * 3 + [False] * 61
    painted, here = built.lay_out(ids, torch.tensor([70]))
    assert torch.equal(painted[0], built.paint[ids[0, 6:]])
    assert here.all()


def test_patches_stand_in_a_picture_as_they_are_numbered() -> None:
    built: Pictures = network("tiny-vit")
    patches = torch.zeros(1, 64, 4)
    patches[0, 9] = torch.tensor([1.0, 2.0, 3.0, 4.0])  # the second of the second row
    pixels = built.pixels(patches)
    assert pixels.shape == (1, 1, 16, 16)
    assert pixels[0, 0, 2:4, 2:4].tolist() == [[1, 2], [3, 4]]
    assert float(pixels.sum()) == 10


@torch.inference_mode()
def test_a_film_is_read_at_the_last_patch_that_is_painted() -> None:
    built: Films = network("tiny-timesformer")
    states: list[torch.Tensor] = []
    built.score.register_forward_hook(lambda _, arguments, __: states.append(arguments[0]))
    built.encoder.register_forward_hook(lambda _, __, output: states.append(output.last_hidden_state))
    built(input_ids=some_ids(1, 6), prompt_tokens=6)  # the second patch of the second frame
    hidden, read = states
    assert torch.equal(read[0], hidden[0, 1 + 1 * built.frames + 1])


@pytest.mark.parametrize(("name", "kind"), [("tiny-t5", "T5"), ("tiny-bart", "Bart")])
@torch.inference_mode()
def test_an_encoder_with_its_decoder_answers_as_transformers_own(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    whole = getattr(transformers, f"{kind}ForConditionalGeneration")

    def kept(config: Any) -> Any:
        built.append(whole(config))
        return built[-1]

    monkeypatch.setattr(tiny.transformers, f"{kind}ForConditionalGeneration", kept)
    ours = NETWORKS[name]().double().eval()
    assert isinstance(ours, crossing.Crossing)
    theirs = built[0]
    if ours.places is not None:
        theirs.model.decoder.embed_positions = ours.places
    ids = some_ids(2, 9)
    started = torch.cat([torch.full((2, 1), ours.start), ids[:, 6:]], dim=1)
    with_theirs = theirs(input_ids=ids[:, :6], decoder_input_ids=started).logits
    if ours.places is not None:
        theirs.model.decoder.embed_positions = crossing.Nowhere()
    assert close(ours(input_ids=ids, prompt_tokens=6), with_theirs)


@torch.inference_mode()
def test_pictures_stand_where_transformers_own_puts_them() -> None:
    built: Any = network("tiny-llava")
    ids = some_ids(1, 7)
    ours = built(input_ids=ids, prompt_tokens=7)
    patches = built.paint[ids[:, :PATCHES]].view(1, 2, 2, 2, 2).transpose(2, 3).reshape(1, 1, 4, 4).repeat(1, 3, 1, 1)
    llava: nn.Module = built.network
    placed = torch.cat([torch.full((1, PATCHES), 300), ids[:, PATCHES:]], dim=1)
    assert 300 not in ids
    built.config.image_token_id = 300
    theirs = llava(input_ids=placed, pixel_values=patches).logits[:, -1:]
    assert close(ours, theirs)


def test_an_axial_layer_attends_along_rows_and_then_along_columns() -> None:
    built: Any = network("tiny-axial")
    layer, cells = built.encoder.layers[0], torch.zeros(1, 8, 8, 32, dtype=torch.float64)
    here = torch.ones(1, 8, 8, dtype=torch.bool)
    moved = cells.clone()
    moved[0, 2, 5] = torch.arange(32) / 32
    along = (layer.rows(moved, here) - layer.rows(cells, here)).abs().sum(-1)[0] > 1e-12
    assert along.nonzero().tolist() == [[2, column] for column in range(8)]
    both = (layer(moved, here) - layer(cells, here)).abs().sum(-1)[0] > 1e-12
    assert bool(both.all())
