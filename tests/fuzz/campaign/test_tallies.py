"""Merging: several shards read as one tally are what one search of all their schedules would have counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from fuzz.campaign.tallies import Shard, Sight, merge, shard_of
from fuzz.conductor import run_trio
from fuzz.search import Limits, Search, drawn
from fuzz.strategies import Space
from targets.protocol import Schedule
from tests.fuzz.scripted import Honest, Scripted


def searched(first: int, count: int) -> Search:
    """A search of some of the schedules of one seed."""

    def draw(space: Space, seed: int) -> Iterator[Schedule]:
        return itertools.islice(drawn(space, seed), first, None)

    search = Search(Scripted(Honest), 1, Limits(schedules=count), draw=draw)
    run_trio(search.run)
    return search


def test_two_shards_merged_are_what_one_search_counts() -> None:
    whole, parts = searched(0, 12), [searched(0, 5), searched(5, 7)]
    shards = [shard_of(number, part.tally, part.judge, {}) for number, part in enumerate(parts)]
    read = [msgspec.json.decode(msgspec.json.encode(shard), type=Shard) for shard in shards]
    merged = merge(read, None, sanitized=False).tally
    assert merged.schedules == whole.tally.schedules == 12
    assert merged.tokens_checked == whole.tally.tokens_checked > 0
    assert merged.mechanisms == whole.tally.mechanisms
    assert merged.coverage.seen == whole.tally.coverage.seen
    assert merged.coverage.figures(2) == whole.tally.coverage.figures(2)
    assert (merged.report.pairs, merged.report.suspects) == (whole.tally.report.pairs, whole.tally.report.suspects)


def test_sights_of_one_signature_add_up_and_the_last_one_counts() -> None:
    shards = [Shard(number=index, sights={"LEAK swap: x": Sight(times=index, last_s=10.0 - index)}) for index in (1, 2)]
    assert merge(shards, None, sanitized=False).sights == {"LEAK swap: x": Sight(times=3, last_s=9.0)}
