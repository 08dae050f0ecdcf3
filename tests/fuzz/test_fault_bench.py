"""`bench faults`: figures are what one counts by hand, nothing is done twice, and a small bench runs through."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from click import testing

from fuzz.__main__ import main
from fuzz.bench_faults import Figures, Plan
from fuzz.fault_bench import ledger
from fuzz.fault_bench.attempts import Task, Trial, planted, settings_of
from fuzz.fault_bench.baselines import all_at_once, fixed_shapes, state_machine, uniform
from fuzz.fault_bench.figures import against, line, lines, whole
from fuzz.fault_bench.ledger import AnyTask, Result, add, missing, performed, read
from fuzz.fault_bench.pairs import EITHER, FIRST, SECOND, TOGETHER, Pair, PairTask, compatible, play_pair
from fuzz.fault_bench.picture import draw, survival
from fuzz.fault_bench.tables import of_comparisons, of_pairs, of_twins
from fuzz.fault_bench.twins import Twin, TwinTask, play_twin
from fuzz.fault_bench.ways import OURS, WAYS
from fuzz.strategies import Space
from targets.faults import FAULTS, Probe
from targets.protocol import BadInput, Cancel, Step, Submit
from targets.protocol.schedule import check_references

SPACE = Space(vocabulary=300, special_ids=(0, 1))
EASY, HARD = "stale-length", "late-token"


def found(fault: str, schedules: int, seconds: float, way: str = OURS, seed: int = 0) -> Trial:
    return Trial(
        task=Task(fault=fault, way=way, seed=seed, seconds=10.0),
        judged=schedules,
        judged_s=seconds,
        reached=1,
        triggered=1,
        found=schedules,
        found_s=seconds,
        check="swap",
        right_first=True,
        right=True,
        evaluations=12,
        minimal=True,
    )


def missed(fault: str, judged: int, way: str = OURS, seed: int = 0) -> Trial:
    return Trial(task=Task(fault=fault, way=way, seed=seed, seconds=10.0), judged=judged, judged_s=10.0, reached=1)


def slotfuzz(*words: object) -> testing.Result:
    return testing.CliRunner().invoke(main, ["bench", "faults", *map(str, words)], prog_name="slotfuzz")


# Figures


def test_schedules_for_each_detection_count_those_of_trials_that_found_nothing() -> None:
    made = line([found(EASY, 3, 0.2), found(EASY, 5, 0.3, seed=1), missed(EASY, 40, seed=2)])
    assert (made.trials, made.detected, made.reached, made.triggered) == (3, 2, 3, 2)
    assert made.per_detection == (3 + 5 + 40) / 2
    assert not made.is_solved


def test_what_was_never_found_takes_at_least_all_that_was_tried() -> None:
    assert line([missed(EASY, 40), missed(EASY, 30, seed=1)]).per_detection == 70


def test_a_bucket_has_the_trials_that_no_shorter_one_has() -> None:
    trials = [found(EASY, 1, seconds, seed=seed) for seed, seconds in enumerate((0.05, 0.5, 0.7, 5.0, 50.0))]
    assert whole([line(trials)]).buckets == (1, 2, 1, 1)


def test_a_median_over_trials_counts_the_censored_as_the_longest() -> None:
    assert whole([line([found(EASY, 1, 2.0), missed(EASY, 9, seed=1), found(EASY, 1, 4.0, seed=2)])]).seconds_median == 4.0
    assert whole([line([found(EASY, 1, 2.0), missed(EASY, 9, seed=1), missed(EASY, 9, seed=2)])]).seconds_median is None


def test_the_worst_of_the_solved_leaves_out_what_is_not_solved() -> None:
    made = whole(lines([found(EASY, 1, 2.0), found(HARD, 1, 9.0), missed(HARD, 9, seed=1)]))
    assert (made.solved, made.found, made.seconds_worst) == (1, 2, 2.0)


def test_how_many_times_fewer_is_a_geometric_mean_over_the_hard_faults_alone() -> None:
    rows = lines(
        [
            found("stale-length", 2, 1.0),
            found("stale-length", 40, 1.0, way="uniform"),  # hard: 20 times
            found("late-token", 10, 1.0),
            missed("late-token", 50, way="uniform"),  # hard, and a lower bound: 5 times
            found("copy-skipped-at-two", 9, 1.0),
            found("copy-skipped-at-two", 3, 1.0, way="uniform"),  # easy: not in it
        ]
    )
    (made,) = against(rows)
    assert made.fewer == pytest.approx((20 * 5) ** 0.5)
    assert (made.hard, made.bounds, made.lost, made.only_ours) == (2, 1, (), ("late-token",))
    assert "10.0 times" in of_comparisons([made])


def test_what_ours_never_found_is_named_beside_the_mean() -> None:
    rows = lines([missed(EASY, 30), found(EASY, 60, 1.0, way="uniform")])
    (made,) = against(rows)
    assert (made.lost, made.only_theirs) == ((EASY,), (EASY,))


def test_a_survival_curve_starts_with_all_and_ends_with_those_who_found_nothing() -> None:
    times, left = survival([found(EASY, 1, 2.0), found(EASY, 1, 0.5, seed=1), missed(EASY, 9, seed=2)], 10.0)
    assert times == [0.01, 0.5, 2.0, 10.0]
    assert left == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3])


def test_a_picture_has_a_curve_for_each_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs slotfuzz[plot]")
    draw([found(EASY, 1, 2.0), missed(EASY, 9, way="uniform")], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.count("slotfuzz (1 trials)") + text.count("uniform (1 trials)") == 2


# The ledger


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.jsonl"
    twin = Twin(
        task=TwinTask(fault=EASY, schedules=3),
        judged=3,
        judged_s=1.0,
        reached=1,
        changed=0,
        suspects=0,
        refuted=0,
        alarms=(),
    )
    pair = Pair(task=PairTask(first=EASY, second=HARD, schedules=2), judged=2, judged_s=1.0, signatures=(("LEAK", FIRST),))
    results: list[Result] = [found(EASY, 3, 0.2), twin, pair]
    for result in results:
        add(path, result)
    assert [entry.result for entry in read(path)] == results


def test_what_the_ledger_has_is_not_missing_unless_the_sources_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done, other = tmp_path / "ledger.jsonl", found(EASY, 3, 0.2), found(HARD, 3, 0.2)
    add(path, done)
    tasks: list[AnyTask] = [done.task, other.task]
    assert missing(path, tasks) == [other.task]
    monkeypatch.setattr(ledger, "version", lambda: "another")
    assert missing(path, tasks) == tasks


def test_a_line_that_was_cut_off_is_no_result_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    add(path, found(EASY, 3, 0.2))
    whole_line = path.read_bytes()
    path.write_bytes(whole_line + whole_line[: len(whole_line) // 2])
    assert len(read(path)) == 1
    add(path, found(HARD, 4, 0.2))
    assert [entry.result.judged for entry in read(path)] == [3, 4]


def test_the_last_result_of_a_task_counts(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    add(path, missed(EASY, 3))
    add(path, found(EASY, 5, 0.2))
    (entry,) = read(path)
    assert entry.result.judged == 5


def test_a_file_that_is_no_ledger_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("fine\n")
    with pytest.raises(BadInput, match="line 1"):
        read(path)


def done_at_once(task: AnyTask) -> Result:
    assert isinstance(task, Task)
    return missed(task.fault, task.seed, seed=task.seed)


@pytest.mark.slow
def test_several_workers_do_every_task_once() -> None:
    tasks = [missed(EASY, 0, seed=seed).task for seed in range(9)]
    results = list(performed(tasks, 2, done_at_once))
    assert sorted(result.judged for result in results) == list(range(9))


# Ways


@pytest.mark.parametrize("draw_", [uniform, all_at_once, fixed_shapes, pytest.param(state_machine, marks=pytest.mark.slow)])
def test_a_baseline_draws_the_same_schedules_for_a_seed_and_others_for_another(draw_) -> None:  # type: ignore[no-untyped-def]
    first, again, other = (list(itertools.islice(draw_(SPACE, seed), 12)) for seed in (4, 4, 5))
    assert first == again != other
    for schedule in first:
        check_references(schedule)


def test_a_baseline_is_what_its_name_says() -> None:
    at_once = itertools.islice(all_at_once(SPACE, 0), 20)
    assert all(isinstance(op, Submit) for schedule in at_once for op in schedule.ops)
    shapes = [op for schedule in itertools.islice(fixed_shapes(SPACE, 0), 50) for op in schedule.ops]
    assert not any(isinstance(op, Cancel) for op in shapes)
    assert {op.count for op in shapes if isinstance(op, Step)} == {1, 4, 8, 32}
    evenly = [op for schedule in itertools.islice(uniform(SPACE, 0), 50) for op in schedule.ops]
    assert any(isinstance(op, Cancel) for op in evenly)


def test_ours_is_first_and_asks_every_check_that_the_baselines_ask() -> None:
    assert next(iter(WAYS)) == OURS
    assert {way.checks for name, way in WAYS.items() if name != "no-swap"} == {WAYS[OURS].checks}


# Twins and pairs


def test_two_of_one_class_are_no_pair_and_settings_agree() -> None:
    pairs = compatible(tuple(FAULTS), 200, 0)
    assert len(pairs) == len(set(pairs)) == 200
    for first, second in pairs:
        assert FAULTS[first].group != FAULTS[second].group
        assert FAULTS[first].targets[0] in FAULTS[second].targets


@pytest.mark.parametrize(
    ("causes", "both", "pure"),
    [((FIRST, SECOND), True, 2), ((FIRST, TOGETHER), False, 1), ((FIRST, EITHER), True, 1), ((EITHER,), False, 0)],
)
def test_a_pair_is_found_if_each_bug_has_a_failure(causes: tuple[str, ...], both: bool, pure: int) -> None:
    task = PairTask(first=EASY, second=HARD, schedules=2)
    pair = Pair(task=task, judged=2, judged_s=1.0, signatures=tuple((cause, cause) for cause in causes))
    assert (pair.both_found, pair.pure) == (both, pure)
    assert f"{pure} of {len(causes)} signatures" in of_pairs([pair])


@pytest.mark.slow
def test_a_twin_is_reached_changes_nothing_and_gives_no_alarm() -> None:
    made = play_twin(TwinTask(fault=EASY, schedules=5))
    assert (made.judged, made.changed, made.alarms) == (5, 0, ())
    assert made.reached
    assert "5 schedules, 0 suspects, 0 of them refuted, 0 alarms" in of_twins([made])


@pytest.mark.slow
def test_of_two_bugs_at_once_each_has_a_failure_with_its_name() -> None:
    made = play_pair(PairTask(first="late-token", second="stale-length", schedules=4, seed=1))
    assert made.both_found, made.signatures


def test_a_planted_factory_has_the_probe_and_the_settings_of_its_fault() -> None:
    probe = Probe()
    assert planted(FAULTS[EASY], probe).name == FAULTS[EASY].targets[0]
    assert settings_of(FAULTS[EASY], "bfloat16") == {**FAULTS[EASY].settings, "dtype": "bfloat16"}


# The whole


def test_the_plan_gives_ours_more_trials_and_goes_seed_by_seed() -> None:
    tasks = Plan(faults=(EASY, HARD), ways=(OURS, "uniform"), twin_schedules=5, pairs=1).tasks()
    trials = [task for task in tasks if isinstance(task, Task)]
    assert [task.fault for task in trials[:3]] == [EASY, HARD, EASY]
    assert {way: sum(task.way == way for task in trials) for way in (OURS, "uniform")} == {OURS: 20, "uniform": 6}
    assert {task.seconds for task in trials} == {60.0, 10.0}
    assert len(tasks) - len(trials) == 2 + 1


@pytest.mark.slow
def test_a_small_bench_runs_through_and_does_nothing_twice(tmp_path: Path) -> None:
    kept, figures, text = tmp_path / "ledger.jsonl", tmp_path / "figures.json", tmp_path / "tables.md"
    words = ["--fault", EASY, "--fault", HARD, "--way", OURS, "--way", "all-at-once", "--trials", 1, "--seconds", 5]
    words += ["--twins", 2, "--ledger", kept, "--json", figures, "--markdown", text]
    first = slotfuzz(*words)
    assert first.exit_code == 0, first.output
    size = kept.stat().st_size
    assert slotfuzz(*words).output == first.output
    assert kept.stat().st_size == size
    made = msgspec.json.decode(figures.read_bytes(), type=Figures)
    assert {(each.fault, each.way) for each in made.lines} == {(f, w) for f in (EASY, HARD) for w in (OURS, "all-at-once")}
    assert sum(twin.judged for twin in made.twins) == 4
    assert "| stale-length |" in text.read_text()
    frozen = slotfuzz("--fault", EASY, "--trials", 1, "--seconds", 5, "--frozen", kept)
    assert "all-at-once" in frozen.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--way", "luck"], "--way must be all, or one of slotfuzz"),
        (["--fault", "none"], "fault must be one of"),
        (["--frozen", "nowhere.jsonl"], "--frozen must be a ledger that exists"),
        (["--plot", "curves.txt"], "--plot must be a file that ends in"),
    ],
)
def test_bad_use_of_the_bench_is_told_in_a_sentence(words: list[str], told: str) -> None:
    result = slotfuzz(*words)
    assert result.exit_code == 2
    assert told in result.output
