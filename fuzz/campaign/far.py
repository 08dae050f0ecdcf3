"""Far: workers of a campaign on the machines of a Ray cluster, so many CPUs or GPUs each.

An actor holds each one's place, and starts there what a worker is on this machine; what is said to the one is passed on to
the other. All write into the one folder of the campaign, which every machine must see at the same path: so merging is
reading, as it always is. Actors end with us, and workers with their actors.
"""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fuzz.campaign.crew import STOP_S, End, NearHand
from fuzz.campaign.shard import Order
from targets.protocol import BadInput

LOCAL = "local"
PLACE_S = 600.0
"""So long a worker may wait until the cluster has room for it."""


class Report(msgspec.Struct, frozen=True):
    """What an actor says of its worker.

    Attributes:
        fate: In words, once it has ended.
    """

    end: End | None
    works: bool
    output: str = ""
    fate: str = ""


class Post:
    """The actor: one worker's place in the cluster."""

    def __init__(self, order: Order, silent_s: float) -> None:
        self.hand = NearHand(order, silent_s)

    def report(self) -> Report:
        """Looks after the worker once."""
        end = self.hand.look()
        if end is None:
            return Report(None, self.hand.works)
        self.hand.end()
        return Report(end, self.hand.works, self.hand.output(), self.hand.fate())

    def stop(self) -> None:
        """Passes it on."""
        self.hand.stop()


class FarHand:
    """A worker somewhere in the cluster; fulfils `fuzz.campaign.crew.Hand`."""

    def __init__(self, cluster: Cluster, order: Order, silent_s: float) -> None:
        self.cluster = cluster
        self.order = order
        here = os.getcwd()
        there = msgspec.structs.replace(order, path=tuple(path or here for path in order.path))
        resources = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_restarts": 0}
        self.actor = cluster.post.options(**resources).remote(there, silent_s)
        self.asked = self.actor.report.remote()
        self.asked_s = time.monotonic()
        self.told_s: float | None = None
        self.last = Report(None, works=False)

    @property
    def works(self) -> bool:
        """As `Hand.works`."""
        return self.last.works

    def look(self) -> End | None:
        """As `Hand.look`. Where a machine is lost, so is its worker."""
        ray = self.cluster.ray
        if self.last.end is not None:
            return self.last.end
        heard, _ = ray.wait([self.asked], timeout=0)
        waited_s = time.monotonic() - (self.asked_s if self.told_s is None else self.told_s)
        try:
            if heard:
                self.last = ray.get(self.asked)
                self.asked, self.asked_s = self.actor.report.remote(), time.monotonic()
            elif waited_s > (PLACE_S if self.told_s is None else STOP_S):
                self.last = Report(
                    End.HUNG, self.works, fate=f"shard {self.order.number} was not heard of for {waited_s:.0f} s"
                )
        except ray.exceptions.RayError as error:
            self.last = Report(End.DIED, self.works, fate=f"shard {self.order.number} was lost: {type(error).__name__}")
        return self.last.end

    def stop(self) -> None:
        """As `Hand.stop`."""
        if self.told_s is None:
            self.told_s = time.monotonic()
            self.actor.stop.remote()

    def end(self) -> None:
        """As `Hand.end`."""
        self.cluster.ray.kill(self.actor)

    def fate(self) -> str:
        """As `Hand.fate`."""
        return self.last.fate

    def output(self) -> str:
        """As `Hand.output`."""
        return self.last.output


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that we are connected to. To be closed.

    Attributes:
        ray: The library.
        post: `Post` as an actor's class.
        cpus, gpus: What each worker gets.
    """

    ray: Any
    post: Any
    cpus: float
    gpus: float

    def hire(self, order: Order, silent_s: float) -> FarHand:
        """Starts a worker wherever there is room."""
        return FarHand(self, order, silent_s)

    def close(self) -> None:
        """Ends every worker that is left, and a cluster of our own."""
        self.ray.shutdown()


def join(address: str, workers: int, cpus: float, gpus: float) -> Cluster:
    """Connects to a cluster, or starts one on this machine with room for so many workers (`local`).

    Raises:
        BadInput: where Ray is not installed, or no cluster answers.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise BadInput("--ray", "installed (pip install 'slotfuzz[ray]')", "no ray") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    own = {"num_cpus": max(1, int(workers * cpus)), "include_dashboard": False}
    if gpus:
        own["num_gpus"] = max(1, int(workers * gpus))
    where = own if address == LOCAL else {"address": address}
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        ray.init(log_to_driver=False, logging_level="error", runtime_env={"env_vars": {"PYTHONPATH": paths}}, **where)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise BadInput("--ray", f"{LOCAL}, or the address of a Ray cluster", address, words[:200]) from error
    return Cluster(ray, ray.remote(Post), cpus, gpus)
