"""The repository itself: its root, its floors, and the habits that a reviewer should not have to check."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("fuzz", "targets", "oracle", "stress")
LINES_MAX = 400
DRAWERS = re.compile(r"(^|_)(utils?|commons?|helpers?|misc)$")
BANNED = {
    "a path of one machine": re.compile(r"(?<![\w.:/])/(?:work|root|home)/\w"),
    "the host of a registry": re.compile(
        r"\b(?:pypi|files\.pythonhosted|registry|artifactory|nexus|proxy)[\w-]*(?:\.[\w-]+)*\.(?:org|com|io|net|internal|local)\b"
    ),
    "an index of one place": re.compile(r"--(?:extra-)?index-url"),
}


def tracked(pattern: str = "") -> list[Path]:
    """Files under version control, and those about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *([pattern] if pattern else [])]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in told.stdout.splitlines() if (ROOT / line).is_file()]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the packages that lie in a folder."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_root_holds_what_it_should_and_nothing_else() -> None:
    names = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert names == {"pyproject.toml", "README.md", "LICENSE", "Makefile", *FLOORS, "tests", "ci"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, ".ci/run is a program"


@pytest.mark.slow
def test_each_floor_imports_only_what_stands_below_it() -> None:
    told = lint_imports(ROOT)
    assert told.returncode == 0, told.stdout
    assert "3 kept, 0 broken" in told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("targets/upwards.py", "import oracle.finding", "Each floor imports only what stands below it"),
        ("oracle/upwards.py", "import fuzz.conductor", "Each floor imports only what stands below it"),
        ("oracle/sharing.py", "from targets.decoder import Decoder", "The judge shares no code with the defendant"),
        ("targets/decoder/knowing.py", "from targets.faults import FAULTS", "The decoder knows nothing of the faults"),
    ],
)
def test_an_import_that_is_not_allowed_is_caught(tmp_path: Path, module: str, line: str, contract: str) -> None:
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, tmp_path / floor, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / module).write_text(line + "\n")
    told = lint_imports(tmp_path)
    assert told.returncode != 0
    assert f"{contract} BROKEN" in told.stdout


def test_a_file_fits_one_sitting() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in tracked("*.py")}
    assert {path: count for path, count in lengths.items() if count > LINES_MAX} == {}


def test_every_folder_of_code_says_what_lives_there() -> None:
    folders = {path.parent for path in tracked("*.py") if path.parts[0] in (*FLOORS, "tests")}
    for folder in folders:
        text = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
        assert text, f"{folder}/__init__.py says nothing"
    for floor in FLOORS:
        text = ast.get_docstring(ast.parse((ROOT / floor / "__init__.py").read_text())) or ""
        assert re.search(r"\bimports?\b", text, re.IGNORECASE), f"{floor}/__init__.py does not say who may import whom"


def test_every_module_says_what_it_is() -> None:
    modules = [path for path in tracked("*.py") if path.parts[0] in FLOORS]
    assert [path for path in modules if not ast.get_docstring(ast.parse((ROOT / path).read_text()))] == []


def test_there_is_no_drawer_for_what_has_no_place() -> None:
    assert [path for path in tracked() if any(DRAWERS.search(Path(part).stem.lower()) for part in path.parts)] == []


def test_no_file_speaks_of_one_machine_or_one_registry() -> None:
    found = Counter[str]()
    for path in tracked():
        text = (ROOT / path).read_text(errors="replace")
        found.update(f"{path}: {what}: {match.group()}" for what, rule in BANNED.items() for match in rule.finditer(text))
    assert dict(found) == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("see /" + "work/main", "a path of one machine"),
        ("https://pypi" + ".org/simple", "the host of a registry"),
        ("pip install --index" + "-url x", "an index of one place"),
    ],
)
def test_what_is_banned_would_be_noticed(text: str, what: str) -> None:
    assert [name for name, rule in BANNED.items() if rule.search(text)][0:1] == [what]
    assert not any(rule.search("a path in a network/work/flow, a registry of targets") for rule in BANNED.values())
