from __future__ import annotations

import pytest
import torch

from oracle.attention import Attention
from oracle.finding import Finding
from oracle.where import Expected, Part, account_site, departure, first_difference, tolerance
from targets.protocol import (
    Admitted,
    Audit,
    Audited,
    CheckName,
    Emitted,
    Finished,
    Holding,
    Kind,
    Pages,
    Preempted,
    Reason,
    Trace,
)

LAYERS, HEADS, GROUPS, TOKENS, SIZE = 2, 4, 2, 5, 8


def attention(seed: int, tokens: int = TOKENS) -> list[Attention]:
    """A causal attention over made-up Q, K and V, a layer each."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn((1, heads, tokens, SIZE), generator=generator, dtype=torch.float64)

    visible = torch.ones((1, HEADS, tokens, tokens), dtype=torch.bool).tril()
    return [attended(draw(HEADS), draw(GROUPS), draw(GROUPS), visible) for _ in range(LAYERS)]


def attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> Attention:
    """With the output that follows from them."""
    bare = Attention(queries, keys, values, visible, None, scale=0.5)
    assert bare.weights is not None
    output = bare.weights @ values.repeat_interleave(HEADS // GROUPS, dim=1)
    return Attention(queries, keys, values, visible, output, scale=0.5)


def last_row(layers: list[Attention], behind: int = 0) -> list[Attention]:
    """The row of a decode: the last query, and `behind` cells of padding behind its own."""
    rows = []
    for whole in layers:
        row = whole.stretch(TOKENS - 1, 1)
        assert row.queries is not None
        assert row.keys is not None
        assert row.values is not None
        padded = [torch.nn.functional.pad(cells, (0, 0, 0, behind), value=3.0) for cells in (row.keys, row.values)]
        visible = torch.nn.functional.pad(row.visible, (0, behind))
        rows.append(attended(row.queries.clone(), padded[0].clone(), padded[1].clone(), visible.clone()))
    return rows


OWN, OTHER = attention(1), attention(2)
EXPECTED = Expected(OWN, {7: OTHER})


def found(rows: list[Attention], told: bool = True) -> tuple[Part, str, int | None, int | None] | None:
    """Part, cause, layer and cell of the departure of a decode."""
    seen = departure(EXPECTED, rows, TOKENS - 1, 1, told)
    return None if seen is None else (seen.part, seen.cause, seen.layer, seen.cell)


@pytest.mark.parametrize("behind", [0, 3])
def test_a_row_that_is_as_alone_does_not_depart_whatever_lies_behind_its_cells(behind: int) -> None:
    assert found(last_row(OWN, behind)) is None


def test_a_difference_of_rounding_is_none() -> None:
    rows = last_row(OWN)
    assert rows[0].keys is not None
    rows[0].keys[0, 0, 0] *= 1 + 1e-14
    assert found(rows) is None


def test_a_query_of_the_first_layer_is_a_position_where_the_token_is_known_to_be_right() -> None:
    rows = last_row(OWN)
    assert rows[0].queries is not None
    rows[0].queries[0, 1, 0, 2] += 1e-6
    assert found(rows) == (Part.QUERY, "query: position", 0, None)
    assert found(rows, told=False) == (Part.QUERY, "query: token or position", 0, None)
    seen = departure(EXPECTED, rows, TOKENS - 1, 1, told=True)
    assert seen is not None
    assert (seen.head, seen.position) == (1, TOKENS - 1)


def test_a_query_of_the_first_layer_may_come_of_a_recurrent_state_where_there_are_any() -> None:
    rows = last_row(OWN)
    assert rows[0].queries is not None
    rows[0].queries[0, 1, 0, 2] += 1e-6
    seen = departure(Expected(OWN, {}, states=True), rows, TOKENS - 1, 1, told=True)
    assert seen is not None
    assert seen.cause == "query: position, or a recurrent state before it"


def test_a_query_of_a_later_layer_points_between_the_layers() -> None:
    rows = last_row(OWN)
    assert rows[1].queries is not None
    rows[1].queries[0, 0, 0, 0] = float("nan")
    assert found(rows) == (Part.QUERY, "query: what happens between two layers", 1, None)


@pytest.mark.parametrize(
    ("behind", "cell", "shown", "cause"),
    [
        (3, TOKENS + 1, True, "mask: cells that are not its own"),
        (0, 1, False, "mask: own cells missing"),
    ],
)
def test_a_mask_that_shows_more_or_less_is_named_with_its_cell(behind: int, cell: int, shown: bool, cause: str) -> None:
    rows = last_row(OWN, behind)
    rows[1].visible[:, :, :, cell] = shown
    assert found(rows) == (Part.MASK, cause, 1, cell)


def test_a_prompt_that_sees_its_own_future_is_told_from_one_that_sees_foreign_cells() -> None:
    rows = [attended(*parts(whole), whole.visible.clone()) for whole in OWN]
    rows[0].visible[0, :, 1, 3] = True
    seen = departure(EXPECTED, rows, 0, TOKENS, told=True)
    assert seen is not None
    assert (seen.cause, seen.position, seen.cell) == ("mask: own cells that it should not see", 1, 3)


def parts(whole: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert whole.queries is not None
    assert whole.keys is not None
    assert whole.values is not None
    return whole.queries, whole.keys, whole.values


@pytest.mark.parametrize(
    ("source", "cause", "owner"),
    [
        (parts(OTHER[0])[1][0, 1, 3], "K,V: its cells hold another request's", 7),
        (parts(OWN[0])[1][0, 0, 2], "K,V: its cells hold those of another head", None),
        (parts(OWN[1])[1][0, 1, 2], "K,V: its cells hold those of another layer", None),
        (parts(OWN[0])[1][0, 1, 0], "K,V: its cells hold its own of another position", None),
        (torch.full((SIZE,), 1.5, dtype=torch.float64), "K,V: its cells hold nothing that was ever written", None),
        (
            torch.linspace(0, 1, SIZE, dtype=torch.float64),
            "K,V: its cells hold what the reference computes for nobody",
            None,
        ),
    ],
)
def test_it_is_said_whose_content_stands_in_a_cell(source: torch.Tensor, cause: str, owner: int | None) -> None:
    rows = last_row(OWN)
    _, keys, _ = parts(rows[0])
    keys[0, 1, 2] = source
    seen = departure(EXPECTED, rows, TOKENS - 1, 1, told=True)
    assert seen is not None
    assert (seen.part, seen.cause, seen.owner) == (Part.KEYS, cause, owner)
    assert (seen.layer, seen.head, seen.cell) == (0, 1, 2)


def test_values_are_looked_at_where_keys_agree() -> None:
    rows = last_row(OWN)
    parts(rows[1])[2][0, 0, 4] = parts(OTHER[1])[2][0, 0, 0]
    assert found(rows) == (Part.VALUES, "K,V: its cells hold another request's", 1, 4)


def test_keys_that_were_repeated_for_their_queries_are_the_same_keys() -> None:
    rows = [
        Attention(
            row.queries,
            parts(row)[1].repeat_interleave(2, dim=1),
            parts(row)[2].repeat_interleave(2, dim=1),
            row.visible,
            row.output,
            row.scale,
        )
        for row in last_row(OWN)
    ]
    assert found(rows) is None


def test_queries_packed_by_group_are_unpacked() -> None:
    for row in last_row(OWN):
        assert row.queries is not None
        packed = Attention(
            row.queries.reshape(1, GROUPS, HEADS // GROUPS, SIZE),
            row.keys,
            row.values,
            row.visible.reshape(1, GROUPS, HEADS // GROUPS, TOKENS),
            None,
        )
        unpacked = packed.unpacked(HEADS)
        assert unpacked.queries is not None
        assert torch.equal(unpacked.queries, row.queries)
        assert torch.equal(unpacked.visible, row.visible)
        assert unpacked.unpacked(HEADS) is unpacked


def test_a_scale_and_an_output_of_their_own_are_named() -> None:
    rows = last_row(OWN)
    scaled = Attention(*parts(rows[0]), rows[0].visible, rows[0].output, scale=0.25)
    assert found([scaled, rows[1]]) == (Part.LOGITS, "logits: their scale or bias", 0, 0)
    assert rows[1].output is not None
    rows[1].output[0, 0, 0, 0] += 1
    assert found(rows) == (Part.OUTPUT, "output: the sum over V", 1, None)


def test_cells_that_were_dropped_are_compared_in_their_order() -> None:
    windowed = [attended(*parts(whole), whole.visible.triu(diagonal=-1)) for whole in OWN]
    rows = []
    for whole in windowed:
        row = whole.stretch(TOKENS - 1, 1)
        queries, keys, values = parts(row)
        rows.append(attended(queries, keys[:, :, 3:].clone(), values[:, :, 3:].clone(), row.visible[:, :, :, 3:]))
    assert departure(Expected(windowed, {}), rows, TOKENS - 1, 1, told=True) is None
    parts(rows[0])[1][0, 0, 0, 0] += 1
    seen = departure(Expected(windowed, {}), rows, TOKENS - 1, 1, told=True)
    assert seen is not None
    assert (seen.part, seen.cell) == (Part.KEYS, 3)


def test_not_a_number_departs_and_two_unknowns_do_not() -> None:
    one = torch.ones(2, dtype=torch.float64)
    assert first_difference(one, torch.tensor([1.0, float("nan")], dtype=torch.float64), 1e-9) is not None
    assert first_difference(None, one, 1e-9) is None
    assert first_difference(one, one.clone(), 1e-9) is None


def test_the_tolerance_follows_the_bound_within_limits() -> None:
    assert tolerance(1e-13) == 1e-9
    assert tolerance(1e-5) == 1e-5
    assert tolerance(float("inf")) == 0.25


def test_the_site_of_a_complaint_has_no_numbers() -> None:
    def site(what: str, kind: Kind = Kind.OWNERSHIP) -> str:
        return account_site(Finding(kind=kind, check=CheckName.OWNERSHIP, what=what, submission=1), ())

    assert site("slot 3 is free twice") == site("slot 12 is free twice") == "slots: slot … is free twice"
    assert site("slot 3 is free twice") != site("slot 3 is held and free")
    lost = site("request #2 streamed [4, 5] but ends with [4, 5, 6]", Kind.BOOKKEEPING)
    assert lost == site("request #0 streamed [] but ends with [9]", Kind.BOOKKEEPING)
    assert lost == "stream: request … streamed … but ends with …"


@pytest.mark.parametrize(
    ("trace", "site"),
    [
        ((), "is never admitted"),
        ((Audited(Audit((), (0,), (1,), 1)),), "is never admitted though slots are free"),
        (
            (Finished(0, Reason.CANCELLED, ()), Audited(Audit((Holding(0, (0,), 1, 1),), (), (1,), 1))),
            "is never admitted: ended requests hold every slot",
        ),
        ((Audited(Audit((Holding(0, (0,), 1, 1),), (), (1,), 1)),), "is never admitted: every slot is held"),
        (
            (Audited(Audit((), (0,), (1,), 1, pages=Pages(4, 1, (), (), ((0, 1),)))),),
            "is never admitted: slots are free, and no page is",
        ),
        (
            (Audited(Audit((), (0,), (1,), 1, pages=Pages(4, 1, (), (0,), ()))),),
            "is never admitted though slots are free",
        ),
        ((Admitted(1, 0),), "is admitted and gets no token"),
        ((Admitted(1, 0), Emitted(1, 5), Preempted(1, 0)), "is preempted and never admitted again"),
        ((Admitted(1, 0), Preempted(1, 0), Admitted(1, 0)), "is admitted and gets no token"),
        ((Admitted(1, 0), Emitted(1, 5), Preempted(1, 0), Admitted(1, 0)), "gets tokens and does not end"),
        ((Admitted(1, 0), Emitted(1, 5)), "gets tokens and does not end"),
    ],
)
def test_a_stall_says_what_is_waited_for(trace: Trace, site: str) -> None:
    finding = Finding(kind=Kind.STALLED, check=CheckName.PROGRESS, what="#1 never ended", submission=1)
    assert account_site(finding, trace) == f"stalled: {site}"


def test_a_digest_is_no_part_of_a_site() -> None:
    told = "shared fd19a2bc3d4e5f60 4 was 0123456789abcdef, and is fedcba9876543210: somebody wrote to it"
    finding = Finding(kind=Kind.OWNERSHIP, check=CheckName.OWNERSHIP, what=told, submission=None)
    assert account_site(finding, ()) == "slots: shared … was …, and is …: somebody wrote to it"
