"""Script: a failure as a program of its own, which needs the engine and the model and nothing of slotfuzz.

Its middle part, how that engine is driven, is a file beside the adapter (`targets/adapters/scripts`). The parts around it
are here: versions, settings and schedule as data, and the answer of the victim alone against its answer beside the others.
"""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.report import format_finding
from fuzz.repro import Repro
from targets.adapters import ADAPTERS
from targets.protocol import BadInput, Cancel, Schedule, Step, Submit, format_schedule

STEPS_MAX = 2000
REPEATS = 10
"""So often a schedule is played where the engine decides by itself when it does what."""


def write(repro: Repro, path: Path) -> Path:
    """Writes the script, and the model beside it; returns where the model lies.

    Raises:
        BadInput: for a target that is no real engine.
    """
    name = repro.target.target
    scripted = [each for each, adapter in ADAPTERS.items() if adapter.scripted]
    if name not in scripted:
        raise BadInput("--script", f"left out for a target other than {', '.join(scripted)}", path, name)
    model = ADAPTERS[name].write_model(path.with_name(path.stem + "-model"))
    path.write_text(text(repro))
    return model


def text(repro: Repro) -> str:
    """The script's text."""
    adapter = ADAPTERS[repro.target.target]
    finding, schedule = repro.finding, repro.schedule
    told = "\n".join((*format_finding(finding).splitlines(), "", *format_schedule(schedule).splitlines()))
    told = told.replace("\\", "\\\\").replace('"""', "'''")
    versions = ", ".join(f"{package} {repro.versions.get(package, 'of unknown version')}" for package in adapter.packages)
    imports = "\n".join(adapter.imports)
    return (
        f'"""A failure of {adapter.title}, found with {versions}.\n\n{told}\n\n'
        f"    python {{this file}} MODEL\n\nMODEL is what lies beside this file. Exit code 1: it shows.\n"
        f'"""\n\n{imports}\n\nMODEL = sys.argv[1]\nSTEPS_MAX = {STEPS_MAX}\nTIMEOUT_S = 60\n'
        f"PACKAGES = {adapter.packages!r}\nSETTINGS = {schedule.settings!r}\nVICTIM = {finding.submission!r}\n"
        f"REPEATS = {REPEATS if adapter.repeats else 1}\nOPS = json.loads({json.dumps(json.dumps(_ops(schedule)))})\n\n\n"
        f"{adapter.script}\n\n{_END}"
    )


_END = """if __name__ == "__main__":
    print(*(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES), sep=", ")
    print(f"settings {SETTINGS}, everything else as the functions above set it")
    requests = [op for op in OPS if op["type"] == "submit"]
    shown = 0
    for victim in range(len(requests)) if VICTIM is None else [VICTIM]:
        alone = play([requests[victim]], {**SETTINGS, "id_slot": "free"} if "id_slot" in SETTINGS else SETTINGS)
        expected = alone if isinstance(alone, str) else alone[0]
        bound = requests[victim]["max_new_tokens"]
        print(f"request {victim}: {len(requests[victim]['prompt'])} prompt tokens, at most {bound} new ones")
        print(f"  expected (alone, fresh)  {expected}")
        for _ in range(REPEATS):
            together = play(OPS, SETTINGS)
            actual = together if isinstance(together, str) else together[victim]
            print(f"  actual (schedule)        {actual}")
            cancelled = any(op["type"] == "cancel" and op["submission"] == victim for op in OPS)
            whole = isinstance(actual, list) and isinstance(expected, list) and len(actual) <= bound
            same = whole and (actual == expected[: len(actual)] if cancelled else actual == expected)
            shown += not same
    print(f"it shows in {shown} of {REPEATS} plays" if shown else "it does not show")
    sys.exit(1 if shown else 0)
"""


def _ops(schedule: Schedule) -> list[dict[str, object]]:
    """The ops as plain data."""
    ops: list[dict[str, object]] = []
    for op in schedule.ops:
        if isinstance(op, Submit):
            request = op.request
            asked = {"prompt": request.prompt, "max_new_tokens": request.max_new_tokens, "stop": request.stop}
            ops.append({"type": "submit", **asked, "client_id": request.client_id})
        elif isinstance(op, Step):
            ops.append({"type": "step", "count": op.count})
        elif isinstance(op, Cancel):
            ops.append({"type": "cancel", "submission": op.submission})
        else:
            ops.append({"type": "wait", "submission": op.submission, "tokens": op.tokens})
    return ops
