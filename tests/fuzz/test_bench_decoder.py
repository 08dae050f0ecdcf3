"""`bench decoder`: padding is counted right, things that are compared take turns, and every part runs. No time is judged."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.bench_decoder import PARTS, Figures
from fuzz.decoder_bench.claims import claims
from fuzz.decoder_bench.inside import Allocations, Padding, padding
from fuzz.decoder_bench.measure import Effort, Ratio, Table, Timing, in_turn, ratio
from fuzz.decoder_bench.stores import _unused
from fuzz.decoder_bench.workload import Server, alike, mixed, settings_for
from targets.decoder import DecoderFactory
from targets.protocol import Audit, Holding, Pages, Request, Setting
from targets.tiny import LARGER


def asked(prompt: int, answer: int) -> Request:
    return Request(prompt=tuple(range(1, prompt + 1)), max_new_tokens=answer)


def counted_padding(factory: DecoderFactory, settings: dict[str, Setting], requests: list[Request]) -> Padding:
    return padding(Server(factory, settings), factory.module(settings), [requests])


def slotfuzz(*words: object) -> Result:
    return CliRunner().invoke(main, ["bench", "decoder", *map(str, words)], prog_name="slotfuzz")


def test_padding_of_two_rows_is_what_one_counts_by_hand(slots: DecoderFactory) -> None:
    """Prompts of 5 and 2, 2 and 3 new tokens, both at once.

    Forward 1 is 2 rows of 5 token places, 7 of them tokens; it reads 2 rows of 5 cells, 5 + 2 of them somebody's.
    Forward 2 is 2 rows of 1 token; it reads 2 rows of 6 cells, 6 + 3. Then the first has ended.
    Forward 3 is 1 row of 1 token; it reads 4 cells, all its own.
    """
    counted = counted_padding(slots, settings_for(slots, 2), [asked(5, 2), asked(2, 3)])
    assert (counted.tokens_used, counted.tokens_fed) == (7 + 2 + 1, 10 + 2 + 1)
    assert (counted.cells_used, counted.cells_read) == (7 + 9 + 4, 10 + 12 + 4)
    assert counted.row() == {"padded cells %": 23.1, "padded tokens %": 23.1}


def test_one_request_at_a_time_is_never_padded(slots: DecoderFactory) -> None:
    counted = counted_padding(slots, settings_for(slots, 1), [asked(5, 2), asked(2, 3)])
    assert (counted.cells, counted.tokens) == (0, 0)


def test_a_prompt_that_shares_a_forward_pads_the_decodes_beside_it(slots: DecoderFactory) -> None:
    requests = [asked(2, 4), asked(2, 1), asked(9, 1)]
    mixed_in, apart = (
        counted_padding(slots, settings_for(slots, 2, {"prefill": prefill}), requests) for prefill in ("mixed", "apart")
    )
    assert mixed_in.tokens_fed - mixed_in.tokens_used == 8
    assert apart.tokens_fed == apart.tokens_used == mixed_in.tokens_used


@pytest.mark.parametrize(("spread", "shortest"), [(0.0, 40), (0.2, 32), (0.8, 8)])
def test_lengths_are_spread_as_asked(slots: DecoderFactory, spread: float, shortest: int) -> None:
    requests = mixed(slots, 9, spread, prompt=40, answer=40)
    for lengths in ([len(request.prompt) for request in requests], [request.max_new_tokens for request in requests]):
        assert (min(lengths), max(lengths)) == (shortest, 40)
    assert requests == mixed(slots, 9, spread, prompt=40, answer=40)
    assert not {token for request in requests for token in request.prompt} & set(slots.special_ids)


def test_buckets_hold_every_request_once_and_like_beside_like() -> None:
    requests = [asked(length, 1) for length in (5, 1, 4, 2, 3)]
    assert [[len(request.prompt) for request in group] for group in alike(requests, 2)] == [[1, 2], [3, 4], [5]]


def test_a_server_gives_every_token_that_is_asked(slots: DecoderFactory) -> None:
    server = Server(slots, settings_for(slots, 2))
    assert server.serve([asked(3, 4), asked(1, 2), asked(7, 5)]) == 11
    assert server.in_groups([[asked(3, 4)], [asked(1, 2)]]) == 6


def test_things_that_are_compared_take_turns_and_every_other_round_is_backwards() -> None:
    calls: list[str] = []

    def way(name: str) -> int:
        calls.append(name)
        return len(calls)

    prepared: list[int] = []
    ways = {name: functools.partial(way, name) for name in "ab"}
    timings = in_turn(ways, Effort(0.0, 3, 3), lambda: prepared.append(len(calls)))
    assert "".join(calls) == "ab" + "ba" + "ab"
    assert prepared == [0, 2, 4]
    assert {name: timing.tokens for name, timing in timings.items()} == {"a": (1, 4, 5), "b": (2, 3, 6)}
    assert all(len(timing.seconds) == 3 for timing in timings.values())


def test_a_ratio_is_of_the_same_round_and_its_median_is_told() -> None:
    timings = {"fast": Timing((8, 8, 8), (1.0, 2.0, 4.0)), "slow": Timing((4, 4, 4), (1.0, 4.0, 2.0))}
    made = ratio(timings, "fast", "slow", "", least=2.5)
    assert made.rounds == (2.0, 4.0, 1.0)
    assert made.median == 2.0
    assert not made.holds
    assert not Table("", "", "", (), (made,)).holds
    assert Table("", "", "", (), (msgspec.structs.replace(made, least=2.0),)).holds
    assert not Table("", "", "", (), limits=(("share", 0.11, 0.1),)).holds


def test_allocations_are_counted_where_memory_is_new_and_only_while_counting() -> None:
    values = torch.zeros(4)
    with Allocations() as allocations:
        values.view(2, 2).add_(1)
        assert (allocations.count, allocations.bytes) == (0, 0)
        values + 1
        assert (allocations.count, allocations.bytes) == (1, 16)
        allocations.counting = False
        values + 1
    assert allocations.count == 1


def test_unused_memory_counts_a_shared_page_once() -> None:
    def holding(slot: int, cells: int, *pages: int) -> Holding:
        return Holding(slot, (slot,), cells, cells, pages=pages)

    pool = Pages(size=4, total=10, free=(), cached=(), references=())
    held = (holding(0, 6, 1, 2), holding(1, 7, 1, 3))  # page 1 is shared, 2 cells of page 2 and 3 of page 3 are in use
    apart = Audit(held=held, free=(), queued=(), slots=2)
    shared = msgspec.structs.replace(apart, pages=pool)
    assert _unused(shared, allocated=400, cell_bytes=10) == pytest.approx(1 - 9 / 40)
    assert _unused(apart, allocated=400, cell_bytes=10) == pytest.approx(1 - 13 / 40)


def test_a_claim_is_judged_by_its_ratio_and_by_nothing_where_there_is_none() -> None:
    claim = "8 to 16 gives another 1.5 times, equal"

    def told(*tables: Table) -> tuple[bool | None, str]:
        (found,) = (made for made in claims(tables) if made.claim == claim)
        return found.holds, found.measured

    def measured(times: float) -> Table:
        return Table("batch", "tiny", "", (), (Ratio("batch 8 to 16, equal", "16", "8", (times,)),))

    assert told() == (None, "")
    assert told(measured(1.52)) == (True, "1.52 times")
    assert told(measured(1.2)) == (False, "1.20 times (less)")
    assert told(measured(1.9)) == (False, "1.90 times (more)")


@pytest.mark.slow
def test_the_larger_random_model_has_fifty_million_parameters() -> None:
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(LARGER["random-50m"]())
    assert sum(weight.numel() for weight in network.parameters()) == 51_651_072


@pytest.mark.slow
def test_a_quick_run_gives_every_table_and_ratios_of_its_own_rows(tmp_path: Path) -> None:
    told = slotfuzz("--quick", "--model", "tiny", "--json", tmp_path / "figures.json")
    assert told.exit_code == 0, told.output
    assert "1 thread, float32, seconds of cpu time" in told.output
    (figures,) = msgspec.json.decode((tmp_path / "figures.json").read_bytes(), type=list[Figures])
    assert [table.part for table in figures.tables] == list(PARTS)
    for table in figures.tables:
        assert f"{table.part}: {table.title} (tiny)" in told.output
        assert table.rows, table.part
        columns = [set(row) for row in table.rows]
        assert all(names == columns[0] for names in columns), table.part
        shown = {str(value) for row in table.rows for value in row.values()}
        for made in table.ratios:
            assert {made.above, made.below} <= shown, made.what
            assert all(times > 0 for times in made.rounds)
    rivals = next(table for table in figures.tables if table.part == "rivals")
    assert [row["answers as generate's"] for row in rivals.rows[1:]] == ["8 of 8"] * 3
    assert all(claim.claim in told.output for claim in figures.claims)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--only", "speed"),
            "--only must be one of batch, rivals, outside, cache, spread, prefill, stores, reuse, pages, got speed",
        ),
        (("--clock", "sun"), "--clock must be one of cpu, wall, got sun"),
    ],
)
def test_a_part_or_a_clock_that_there_is_not_is_refused_in_one_sentence(words: tuple[str, ...], message: str) -> None:
    told = slotfuzz(*words)
    assert (told.exit_code, told.output.strip()) == (2, message)
