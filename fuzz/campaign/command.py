"""A campaign from the command line: what is printed while it runs and at its end, its JSON, and its exit code."""

from __future__ import annotations

import signal

import msgspec
from rich.progress import Progress

from fuzz import repro as repros
from fuzz.campaign.bugs import Told
from fuzz.campaign.crew import Hire, NearHand
from fuzz.campaign.folder import FAILED, FIXED, Bug, Campaign, Folder
from fuzz.campaign.supervisor import Supervisor
from fuzz.campaign.tallies import Merged, merge
from fuzz.commandline import memory_gib
from fuzz.coverage import cycles_of
from fuzz.fresh import Manner
from fuzz.judge import Judge
from fuzz.mechanisms import possible
from fuzz.pages.campaign import verdict_of, write_page
from fuzz.report import (
    EXIT_CODES,
    as_json,
    finding_fields,
    format_repro,
    format_tally,
    replay_command,
    totals,
)
from fuzz.run import Run, announce, is_reactive, progress
from oracle.finding import Verdict
from targets.protocol import BadInput


def run_campaign(asked: Run, workers: int, resume: bool, seed: int | None, hire: Hire = NearHand) -> int:
    """Runs one session of a campaign; returns the exit code. Ctrl-C ends it early and keeps everything.

    Args:
        seed: As it was given; None where it was not.
        hire: Starts a worker.

    Raises:
        BadInput: where the folder holds another campaign, or one runs in it.
    """
    folder = Folder(asked.out)
    with folder.locked():
        campaign = _campaign(asked, folder, resume, seed)
        campaign.cycles = cycles_of(asked.factory, asked.settings)
        campaign.possible = tuple(possible(asked.factory.control))
        asked.seed = campaign.seed
        announce(asked)
        _say(asked, f"{workers} worker{'s' * (workers != 1)}, shards from {campaign.next_shard} on, in {asked.out}")
        judge = Judge(asked.factory)
        reference = judge.reference(asked.settings)
        _say(asked, f"rounding: in {reference.precision}, logits may differ by {reference.bound:.3g}")
        mute = not is_reactive(asked, reference.network)
        with progress(asked) as bar:
            supervisor = _supervisor(asked, folder, campaign, workers, hire, bar)
            interrupted = _carried_out(asked, supervisor)
        merged = _merged(asked, supervisor, mute)
        if interrupted and not merged.tally.schedules:
            _say(asked, f"stopped before any schedule was judged\nnext: {_go_on(asked, workers)}")
            return 130
        supervisor.session.undecided += supervisor.bugs.unreadable
        supervisor.session.undecided += ["the model hardly reacts to its prompt"] if mute else []
        supervisor.bugs.save()
        verdict = verdict_of(campaign, merged)
        page = writes = asked.out / "report.html"
        _conclude(asked, supervisor, merged, verdict)
        try:
            write_page(folder, page)
            if asked.json is not None:
                writes = asked.json
                fields = _fields(asked, supervisor, merged, verdict, reference.bound)
                repros.write_atomically(asked.json, as_json(fields))
        except OSError as error:  # a full disk: what was found is printed by now
            _say(asked, f"not written: {writes}: {error.strerror}")
        failing = [folder.repros / f"{bug.id}.json" for bug in campaign.bugs if bug.status == FAILED]
        replay = replay_command(asked.spec, *failing, memory_gib=memory_gib())
        again = replay if failing and not interrupted else _go_on(asked, workers)
        _say(asked, ("stopped; what was found is kept\n" if interrupted else "") + f"page: {page}\nnext: {again}")
        return EXIT_CODES[verdict]


def _campaign(asked: Run, folder: Folder, resume: bool, seed: int | None) -> Campaign:
    """The campaign that goes on, or a new one."""
    begun = folder.begun()
    if begun is None:
        return Campaign(target=asked.spec, settings=asked.settings, seed=asked.seed)
    if not resume:
        raise BadInput("--out", "a folder without a campaign, unless --resume goes on with it", asked.out)
    for name, given, had in (
        ("--target, --model and --fault", asked.spec, begun.target),
        ("--set, --dtype, --device and --sanitize", asked.settings, begun.settings),
        ("--seed", begun.seed if seed is None else seed, begun.seed),
    ):
        if given != had:
            raise BadInput(name, f"as in the campaign, {_plain(had)}", _plain(given), str(folder.campaign))
    return begun


def _plain(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _supervisor(asked: Run, folder: Folder, campaign: Campaign, workers: int, hire: Hire, bar: Progress) -> Supervisor:
    task = bar.add_task("", total=asked.limits.schedules, found=0)

    def tick(supervisor: Supervisor) -> None:
        done = sum(shard.schedules for shard in supervisor.shards())
        bar.update(task, completed=done, found=sum(bug.status != FIXED for bug in campaign.bugs))

    told = Told(
        replayed=lambda path, status, why: _say(asked, f"{status:<7} {path}" + (f"  ({why})" if why else "")),
        found=lambda repro, path: _say(asked, f"{format_repro(repro, path)}\n"),
        died=lambda fate: _say(asked, f"a worker ended: {fate}; another one goes on"),
        tick=tick,
    )
    hang_s = None if asked.in_process else asked.patience.hang_s
    manner = Manner(asked.spec, asked.in_process, hang_s)
    return Supervisor(folder, campaign, manner, asked.limits, workers, told, asked.in_a_row, hire=hire)


def _carried_out(asked: Run, supervisor: Supervisor) -> bool:
    """Runs a session; whether it was interrupted. Typed once more, Ctrl-C leaves what was found unconfirmed."""
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a service or a CI ends us: the same as Ctrl-C
    try:
        supervisor.run()
    except KeyboardInterrupt:
        interrupted = True
    try:
        supervisor.finish()
    except KeyboardInterrupt:
        _say(asked, f"not confirmed: they lie in {supervisor.folder.found}, and --resume goes on with them")
        interrupted = True
    return interrupted


def _merged(asked: Run, supervisor: Supervisor, mute: bool) -> Merged:
    """Shards as one; its speed is that of all of them together."""
    merged = merge(supervisor.shards(), supervisor.campaign.cycles, bool(asked.settings.get("sanitize")))
    merged.tally.mute = mute
    return msgspec.structs.replace(merged, wall_s=supervisor.session.seconds)


def _conclude(asked: Run, supervisor: Supervisor, merged: Merged, verdict: Verdict) -> None:
    """Every bug by its signature, then the totals of the session."""
    session = supervisor.session
    for bug in supervisor.campaign.bugs:
        _say(asked, format_bug(bug, session.began_s))
    _say(
        asked,
        format_tally(merged.by_the_clock(), asked.factory.control, merged.forwards.fill, merged.share_outside, verdict),
    )
    for sentence in session.undecided:
        _say(asked, f"undecided: {sentence}")
    if session.deaths:
        _say(asked, f"workers that ended early: {len(session.deaths)}")


def format_bug(bug: Bug, since_s: float) -> str:
    """One line on a bug."""
    new = ", new" if bug.first_seen_s >= since_s else ""
    why = f" ({bug.error})" if bug.error else ""
    return f"{bug.status:<11} {bug.signature}  {bug.id}{new}, seen {bug.times} times{why}"


def _fields(asked: Run, supervisor: Supervisor, merged: Merged, verdict: Verdict, bound: float) -> dict[str, object]:
    campaign, session, folder = supervisor.campaign, supervisor.session, supervisor.folder
    stored = {folder.repros / f"{bug.id}.json": bug for bug in campaign.bugs if bug.status == FAILED}
    fields = totals(merged.by_the_clock(), merged.forwards, campaign.seed, bound, verdict)
    fields["first_found_after"] = None
    fields["findings"] = [finding_fields(path, repros.load(path)) for path in stored]
    every = [shard for shard in map(supervisor.shard, range(campaign.next_shard)) if shard is not None]
    fields["campaign"] = {
        "sessions": len(campaign.sessions),
        "schedules": sum(shard.schedules for shard in every),
        "workers": session.workers,
        "shards": session.shards,
        "deaths": session.deaths,
        "undecided": session.undecided,
        "bugs": campaign.bugs,
    }
    return fields


def _go_on(asked: Run, workers: int) -> str:
    words = ["slotfuzz run", *asked.spec.arguments()]
    words += [f"--seconds {asked.limits.seconds:g}"] if asked.limits.seconds is not None else []
    words += [f"--schedules {asked.limits.schedules}"] if asked.limits.schedules is not None else []
    words += [f"--set {name}={value}" for name, value in asked.settings.items()]
    words += [] if asked.in_a_row is None else [f"--in-a-row {asked.in_a_row}"]
    words += ["--in-process"] if asked.in_process else []
    words += [] if asked.patience.hang_s is None else [f"--hang-seconds {asked.patience.hang_s:g}"]
    words += [] if (limit := memory_gib()) is None else [f"--memory-gib {limit:g}"]
    return " ".join([*words, *asked.ray, f"--workers {workers} --resume --out {asked.out}"])


def _say(asked: Run, text: str) -> None:
    asked.console.print(text, markup=False, highlight=False, soft_wrap=True)
