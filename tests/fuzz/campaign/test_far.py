"""Workers on a Ray cluster: the same campaign as on this machine, and what becomes of one whose machine is lost."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz.__main__ import main
from fuzz.campaign.crew import End
from fuzz.campaign.far import Cluster, FarHand, Report
from fuzz.campaign.shard import Order
from targets.registry import TargetSpec

WORDS = ("--target", "tests.fuzz.scripted:crowded", "--in-process", "--seed", "1", "--schedules", "16", "--workers", "2")
ORDER = Order(target=TargetSpec(), settings={}, seed=1, number=3, out="out", path=("", "/elsewhere"))


def run(out: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["run", "--out", str(out), "--json", f"{out}.json", *WORDS, *words], prog_name="slotfuzz"
    )


def told(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return fields


@pytest.mark.slow
def test_two_workers_on_a_local_cluster_do_what_two_processes_do(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'slotfuzz[ray]'")
    near, far = run(tmp_path / "near"), run(tmp_path / "far", "--ray", "local")
    assert (near.exit_code, far.exit_code) == (1, 1), far.output
    one, other = told(tmp_path / "near.json"), told(tmp_path / "far.json")
    for field in ("schedules", "failing", "tokens_checked", "mechanisms", "pairs"):
        assert one[field] == other[field]
    assert [finding["id"] for finding in one["findings"]] == [finding["id"] for finding in other["findings"]]
    assert other["campaign"]["shards"] == [0, 1]
    assert other["campaign"]["deaths"] == []


def test_where_ray_is_not_installed_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = run(tmp_path / "out", "--ray", "local")
    assert refused.exit_code == 2
    assert refused.stderr == "--ray must be installed (pip install 'slotfuzz[ray]'), got no ray\n"


def test_a_cluster_is_only_for_campaigns_and_sets_no_limit_on_memory(tmp_path: Path) -> None:
    refused = run(tmp_path / "out", "--ray", "local", "--memory-gib", "4")
    assert refused.exit_code == 2
    assert refused.stderr == "--ray must be left out without --workers, and with --memory-gib, got local\n"


class LostError(Exception):
    """What Ray raises."""


class Fake:
    """As much of Ray as a hand asks for. An actor's reports come one after another; then its machine is lost."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self, *reports: Report | None) -> None:
        self.reports = list(reports)
        self.orders: list[Order] = []
        self.killed = 0

    def options(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(remote=self.remote)

    def remote(self, order: Order, silent_s: float) -> SimpleNamespace:
        self.orders.append(order)
        return SimpleNamespace(report=SimpleNamespace(remote=lambda: "a report"))

    def wait(self, asked: list[str], timeout: float) -> tuple[list[str], list[str]]:
        if self.reports and self.reports[0] is None:
            self.reports.pop(0)
            return [], asked
        return asked, []

    def get(self, asked: str) -> Report | None:
        if not self.reports:
            raise LostError
        return self.reports.pop(0)

    def kill(self, actor: object) -> None:
        self.killed += 1


def hand(fake: Fake) -> FarHand:
    return Cluster(fake, fake, cpus=1, gpus=0).hire(ORDER, 300.0)


def test_a_far_worker_is_what_its_actor_says_of_it() -> None:
    fake = Fake(None, Report(None, works=True), Report(End.DIED, works=True, output="words", fate="shard 3 was killed"))
    far = hand(fake)
    assert (far.look(), far.works) == (None, False)
    assert (far.look(), far.works) == (None, True)
    assert [far.look(), far.look()] == [End.DIED, End.DIED]
    assert (far.fate(), far.output()) == ("shard 3 was killed", "words")
    far.end()
    assert fake.killed == 1


def test_a_far_worker_imports_from_where_we_are() -> None:
    fake = Fake()
    hand(fake)
    assert fake.orders == [msgspec.structs.replace(ORDER, path=(str(Path.cwd()), "/elsewhere"))]


def test_a_worker_whose_machine_is_lost_has_died() -> None:
    far = hand(Fake(Report(None, works=True)))
    assert far.look() is None
    assert far.look() is End.DIED
    assert far.fate() == "shard 3 was lost: LostError"


def test_a_worker_for_which_the_cluster_has_no_room_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    far = hand(Fake(None))
    monkeypatch.setattr("fuzz.campaign.far.PLACE_S", -1.0)
    assert far.look() is End.HUNG
    assert far.fate() == "shard 3 was not heard of for 0 s"
