"""`slotfuzz passphrase`: what somebody says a while before me, beside me, or in front of me; and what I am told then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fuzz.commandline import Number, bad, check_file, read_settings

if TYPE_CHECKING:
    from rich.console import Console

    from fuzz.passphrase.prefix import Drift, Experiment, Look
    from fuzz.passphrase.serving import Bench, Played
    from fuzz.passphrase.texts import Words
    from targets.protocol import Request

AT_ONCE = 5
GLOBAL_CACHE = "threads-one-cache"


@click.command()
@click.option("--mode", type=click.Choice(["repeat", "concurrent", "prefix"]), required=True)
@click.option("--target", default="threads", show_default=True, help="What serves; the built-in ones only.")
@click.option("--model", default="tiny", show_default=True, help="prefix needs a trained one: gemma3-270m or a folder.")
@click.option("--fault", "faults", multiple=True, help="Plant a bug (see `slotfuzz faults`); may be repeated.")
@click.option("--set", "sets", multiple=True, metavar="KNOB=VALUE", help="Fix a knob (see `slotfuzz targets`).")
@click.option("--dtype", help="float64 (default), float32, bfloat16 or float16.")
@click.option("--tasks", type=Number(int, 2, 20), default=20, show_default=True, help="prefix: how many.")
@click.option("--contents", type=Number(int, 1, 3), default=2, show_default=True, help="prefix: texts of each kind.")
@click.option("--lengths", help="prefix: of the texts, in tokens, with commas between.  [default: a scan from 1 to 256]")
@click.option("--new-tokens", type=Number(int, 1, 64), default=12, show_default=True, help="Of each answer.")
@click.option(
    "--looks", type=Number(int, 1, 20), default=3, show_default=True, help="prefix: tasks whose attention is seen."
)
@click.option("--trust", type=Number(int, 0, 64), default=0, help="prefix: once more with the text worth so many nats less.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything as JSON.")
@click.option("--plot", "plot", type=click.Path(path_type=Path), help="prefix: a picture, .png or .svg (needs matplotlib).")
def passphrase(
    mode: str,
    target: str,
    model: str,
    faults: tuple[str, ...],
    sets: tuple[str, ...],
    dtype: str | None,
    tasks: int,
    contents: int,
    lengths: str | None,
    new_tokens: int,
    looks: int,
    trust: int,
    json_path: Path | None,
    plot: Path | None,
) -> int:
    """May what somebody said change what I am told? The same input twice, five at once, or a text before a task.

    Exit codes: 0 nothing leaks; 1 something does; 3 undecided, or drift by rounding where bits were to be the same.
    """
    from fuzz.passphrase.prefix import LENGTHS, Experiment
    from fuzz.passphrase.serving import Bench
    from fuzz.passphrase.texts import words_of
    from fuzz.run import console, set_threads
    from targets.models import find_model
    from targets.registry import CAUSAL, TargetSpec

    set_threads()
    check_file(json_path)
    if plot is not None:
        from fuzz.dose_picture import check_picture

        check_file(plot, "--plot")
        check_picture(plot)
        if mode != "prefix":
            raise bad("--plot", "left out but for --mode prefix", plot)
    if target not in CAUSAL:
        raise bad("--target", "one of " + ", ".join(CAUSAL), target)
    words = words_of(find_model(model), model)
    bench = Bench(TargetSpec(target, model, faults), {})
    bench.settings = read_settings(bench.factory.knobs, sets, {"dtype": dtype})
    said = console()
    try:
        if mode == "prefix":
            precision = {name: value for name, value in bench.settings.items() if name in ("dtype", "weights", "device")}
            scan = LENGTHS if lengths is None else _lengths(lengths)
            experiment = Experiment(words, precision, tasks, contents, scan, new_tokens, looks)
            return _prefix(experiment, bench, trust, json_path, plot, said)
        return _serve(mode, bench, words, new_tokens, json_path, said)
    finally:
        bench.close()


def _serve(mode: str, bench: Bench, words: Words, new_tokens: int, json_path: Path | None, said: Console) -> int:
    """Repeat and concurrent."""
    from fuzz.passphrase.prefix import Experiment
    from fuzz.passphrase.serving import Bench
    from fuzz.passphrase.tables import of_played
    from targets.registry import TargetSpec

    experiment = Experiment(words, {}, AT_ONCE, 1, (1,), new_tokens, 1)
    requests = [experiment.request(task) for task in experiment.asked]
    if mode == "repeat":
        played = bench.repeat(requests)
    else:
        played = _at_once(bench, requests, "a context each")
        if bench.spec == TargetSpec("threads", bench.spec.model):  # the control: what one state for all looks like
            shared = Bench(TargetSpec("threads", bench.spec.model, (GLOBAL_CACHE,)), bench.settings)
            control = _at_once(shared, requests, "one state for all")
            shared.close()
            played, honest = [*played, *control], len(played)
            if not all(each.findings for each in control):
                said.print("undecided: what shares one state was not convicted, so that a pass says nothing")
                return _finish(played, honest, json_path, said, of_played, 3)
            return _finish(played, honest, json_path, said, of_played, 0)
    return _finish(played, len(played), json_path, said, of_played, 0)


def _at_once(bench: Bench, requests: list[Request], way: str) -> list[Played]:
    """Five at once; on threads with and without a lock, unless that is set."""
    knobs = {knob.name for knob in bench.factory.knobs}
    if "lock" not in knobs or "lock" in bench.settings:
        return [bench.concurrent(requests, way)]
    return [bench.concurrent(requests, f"{way}, {name}", lock=lock) for name, lock in (("no lock", False), ("lock", True))]


def _finish(played: list[Played], honest: int, json_path: Path | None, said: Console, table: Any, code: int) -> int:
    """Says it all; the first `honest` lines decide."""
    said.print(table(played))
    _say_undecided(played, said)
    for each in played:
        for finding in each.findings[:1]:
            said.print(f"\n{each.way}: {finding.kind}  {finding.what}  (check: {finding.check})", markup=False)
            for sentence in finding.evidence:
                said.print(f"  {sentence}", markup=False)
    _write(json_path, {"played": played})
    asked = played[:honest]
    if any(each.findings for each in asked):
        return 1
    return code if all(each.is_clean for each in asked) else 3


def _say_undecided(played: list[Played], said: Console) -> None:
    """What keeps each line in which nothing was found from being a pass."""
    for each in played:
        if not each.findings and not each.is_clean:
            said.print(f"\n{each.way}: {each.told}", markup=False)


def _prefix(
    experiment: Experiment, bench: Bench, trust: int, json_path: Path | None, plot: Path | None, said: Console
) -> int:
    """A text in front, and as another request's content."""
    from dataclasses import replace

    from fuzz.passphrase import claims, tables

    words = experiment.words
    drifts, looks = _measured(experiment, said)
    attenuated = replace(experiment, trust=trust) if trust else None
    trusted, trusted_looks = ([], []) if attenuated is None else _measured(attenuated, said)
    played = _beside(experiment, bench)
    told = [*claims.of_answers(drifts, experiment.new_tokens), *claims.of_attention(looks)]
    for table in (
        tables.of_drifts(drifts, trusted, trust),
        tables.of_looks(looks, trusted_looks, trust),
        tables.of_claims(told),
        tables.of_played(played),
    ):
        said.print(table)
        said.print()
    if not words.trained:
        said.print("a random model: its drift says nothing of texts, and the claims are not about it", markup=False)
    if claims.is_deaf_to_meaning(drifts, experiment.new_tokens):
        ones = [drift.mean for drift in drifts if drift.length == 1]
        said.print(
            f"one token before the task changes {sum(ones) / len(ones):.1f} of {experiment.new_tokens} tokens already: "
            "drift behind longer texts says nothing of what they say",
            markup=False,
        )
    _say_undecided(played, said)
    leaks, clean = any(each.findings for each in played), all(each.is_clean for each in played)
    word = "it leaks" if leaks else "nothing of it comes across" if clean else "undecided"
    said.print(f"another request's content: {word}", markup=False)
    _write(
        json_path,
        {
            "model": words.model.identity,
            "trained": words.trained,
            "drifts": drifts,
            "looks": looks,
            "trust": trust,
            "trusted": trusted,
            "trusted_looks": trusted_looks,
            "claims": told,
            "another_request": played,
        },
    )
    if plot is not None:
        from fuzz.passphrase.picture import draw

        draw(drifts, looks, words.model.name, plot)
        said.print(f"picture: {plot}", markup=False)
    return 1 if leaks else 0 if clean else 3


def _measured(experiment: Experiment, said: Console) -> tuple[list[Drift], list[Look]]:
    """Every text, with a line for each while it takes its time."""
    drifts = []
    for drift in experiment.drifts():
        drifts.append(drift)
        example = experiment.words.decode(list(drift.sample))
        said.print(f"{drift.kind} {drift.content}, {drift.length} tokens: {drift.mean:.1f} edits; {example!r}", markup=False)
    return drifts, list(experiment.looks())


def _beside(experiment: Experiment, bench: Bench) -> list[Played]:
    """The longest text of each kind as somebody else's request, beside three tasks."""
    from fuzz.passphrase.texts import KINDS

    tasks = [experiment.request(task) for task in experiment.asked[:3]]
    played = []
    for kind in KINDS:
        text = experiment.words.prefix(kind, 0, max(experiment.lengths))
        played.append(bench.concurrent([*tasks, experiment.request((), text)], f"beside a request with the {kind} text"))
    return played


def _lengths(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) <= 4096 for word in words):
        raise bad("--lengths", "whole numbers in 1..4096 with commas between", text)
    return tuple(sorted({int(word) for word in words}))


def _write(path: Path | None, everything: dict[str, Any]) -> None:
    if path is not None:
        from fuzz.repro import write_atomically

        write_atomically(path, msgspec.json.format(msgspec.json.encode(everything), indent=1))
