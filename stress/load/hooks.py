"""Hooks: what happens when locust starts, stops and quits. One object a process, that listens to locust's events."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import click
import gevent
import gevent.event
from locust import LoadTestShape
from locust.env import Environment
from locust.event import Events
from locust.runners import STATE_CLEANUP, STATE_INIT, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner
from locust.stats import CSV_STATS_INTERVAL_SEC

from stress.load.client import Client
from stress.load.desk import Desk
from stress.load.ending import Verifier, check_folder, conclude, note_plan
from stress.load.gauges import Watch
from stress.load.models import find_served
from stress.load.plan import OPTIONS, SEEDS, Plan, check_host, read_plan
from stress.load.shapes import users_at
from stress.load.traces import read_trace
from stress.load.users import Caller, Noisy, Replayer, Victim, Visitor
from targets.protocol.errors import BadInput

LOOK_S = 0.05
ENDING = (STATE_STOPPING, STATE_STOPPED, STATE_CLEANUP)
DRAIN, DRAINED, GONE = "slotfuzz-drain", "slotfuzz-drained", "slotfuzz-gone"
GONE_S = 5.0
"""An endpoint that is gone for so long does not come back: the run ends."""
GONE_LOOK_S = 0.5
OVER_S = 5.0
"""So much longer than its time the run may take to begin to stop, before it is stopped from here."""


def refuse(error: BadInput) -> None:
    """Says a user's mistake and ends the process."""
    click.echo(" ".join(str(error).split()), err=True)
    sys.exit(2)


class Hooks:
    """One process of a run.

    Attributes:
        plan, desk: There once they are known; a master has no desk, as it has no users.
        drained, unsent: How many workers have heard all that they asked for, and what they did not send.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.desk: Desk | None = None
        self.watch: Watch | None = None
        self.drained = self.unsent = 0
        self.verifier = Verifier()
        self._concluding: gevent.event.Event | None = None
        self._runs = 0
        self._stopping = False

    def listen(self, events: Events) -> None:
        """Registers itself."""
        events.init_command_line_parser.add_listener(self.on_parser)
        events.init.add_listener(self.on_init)
        events.test_start.add_listener(self.on_test_start)
        events.test_stopping.add_listener(self.on_test_stopping)
        events.quitting.add_listener(self.on_quitting)

    def on_parser(self, parser: Any, **_: Any) -> None:
        """Adds our options to locust's."""
        group = parser.add_argument_group("slotfuzz options", "What is asked, and what is made of the answers.")
        for option in OPTIONS:
            words: dict[str, Any] = {"action": "store_true"} if option.switch else {"default": option.default}
            group.add_argument(option.flag, help=option.help, **words)

    def on_init(self, environment: Environment, runner: Any, **_: Any) -> None:
        """Checks the options before anything is asked, and chooses who asks."""
        options = vars(environment.parsed_options)
        try:
            if isinstance(runner, WorkerRunner):
                runner.register_message(DRAIN, self.on_drain, concurrent=True)
            else:
                if options["seed"] is None:
                    options["seed"] = str(random.SystemRandom().randrange(SEEDS))
                options["out"] = options["out"] or time.strftime("slotfuzz-out/stress/%Y%m%d-%H%M%S")
                options["stop_timeout"] = environment.stop_timeout = float(options["grace_seconds"])
                users = options["num_users"] or 1
                self.plan = read_plan(options, environment.host, users, options["run_time"])
                options["slotfuzz_users"], options["slotfuzz_run_s"] = users, self.plan.run_s
                check_folder(self.plan)
                if options["headless"]:  # on a page, the host may still be typed
                    find_served(Client(self.plan.host, self.plan.api_key, self.plan.silence_s), self.plan.model)
                click.echo(f"seed {self.plan.seed}, {users} users, {self.plan.run_s:g} s, against {self.plan.host}")
            if isinstance(runner, MasterRunner):
                runner.register_message(DRAINED, self.on_drained)
                runner.register_message(GONE, self.on_gone, concurrent=True)
        except BadInput as error:
            refuse(error)
        if not options.get("user_classes") and not isinstance(runner, WorkerRunner):  # a worker has whom its master names
            environment.user_classes[:] = _classes(options)
        if options["shape"] == "none":
            environment.shape_class = None

    def on_test_start(self, environment: Environment, **_: Any) -> None:
        """Opens the desk. The host may be another one than at the start: locust's page lets one type it."""
        options, runner = vars(environment.parsed_options), environment.runner
        assert runner is not None, "it starts"
        self._runs, self._stopping = self._runs + 1, False
        try:
            check_host(environment.host, bool(options["allow_remote"]))
            users, run_s = options["slotfuzz_users"], options["slotfuzz_run_s"]
            plan = self.plan = read_plan(options, environment.host, users, run_s)
            recorded = None if plan.trace is None else read_trace(Path(plan.trace), plan)
            client = Client(plan.host, plan.api_key, plan.silence_s)
            served = find_served(client, plan.model)
            model = served.id
        except BadInput as error:
            click.echo(" ".join(str(error).split()), err=True)
            environment.process_exit_code = 2
            self.plan = None
            gevent.spawn(runner.quit)
            return
        if isinstance(runner, WorkerRunner):
            self._sit_down(Desk(plan, model, recorded, runner.worker_index, options["expect_workers"]), environment)
            return
        note_plan(plan, served.id, served.slotfuzz)
        click.echo(f"model {model}; transcripts in {plan.out}")
        if not isinstance(runner, MasterRunner):
            self._sit_down(Desk(plan, model, recorded), environment)
        if plan.watch_s:
            self.watch = Watch(client, plan, self.desk)
            runner.greenlet.spawn(self.watch.run)
        gevent.spawn_later(plan.run_s + OVER_S, self._stop_by_force, environment, self._runs)

    def _sit_down(self, desk: Desk, environment: Environment) -> None:
        if self.desk is not None:
            self.desk.close()
        self.desk = desk
        assert environment.runner is not None, "it starts"
        environment.runner.greenlet.spawn(self._look_for_it, desk, environment)
        for each in environment.user_classes:
            if issubclass(each, Caller):
                each.desk = desk

    def _look_for_it(self, desk: Desk, environment: Environment) -> None:
        """Ends the run when the endpoint is gone."""
        while desk.gone_s < GONE_S:
            gevent.sleep(GONE_LOOK_S)
        if isinstance(environment.runner, WorkerRunner):
            environment.runner.send_message(GONE)
        else:
            self.on_gone(environment)

    def on_gone(self, environment: Environment, **_: Any) -> None:
        """Nobody has heard from the endpoint for long."""
        runner, options = environment.runner, vars(environment.parsed_options)
        assert runner is not None, "it runs"
        if self._stopping or runner.state in ENDING:
            return
        click.echo(f"the endpoint is gone: nothing was heard for {GONE_S:g} s but that there is none", err=True)
        gevent.spawn(runner.quit if options["headless"] else runner.stop)

    def _stop_by_force(self, environment: Environment, run: int) -> None:
        """A run that was started from locust's page ends in time as well, whatever was typed there."""
        runner = environment.runner
        if runner is not None and run == self._runs and not self._stopping and runner.state not in ENDING:
            click.echo("the run's time is over", err=True)
            runner.stop()

    def on_test_stopping(self, environment: Environment, **_: Any) -> None:
        """Nobody asks any more; what was asked has some time to be answered in."""
        runner, plan = environment.runner, self.plan
        self._stopping = True
        if plan is None:
            return
        if isinstance(runner, MasterRunner):
            waiting = len(runner.clients.all)
            self.drained = 0
            runner.send_message(DRAIN)
            until = time.monotonic() + plan.grace_s + OVER_S
            while self.drained < waiting and time.monotonic() < until:
                gevent.sleep(LOOK_S)
        else:
            self._drain(plan)

    def _drain(self, plan: Plan) -> None:
        if self.desk is None:
            return
        self.desk.closing = True
        until = time.monotonic() + plan.grace_s
        while self.desk.in_flight and time.monotonic() < until:
            gevent.sleep(LOOK_S)

    def on_drain(self, environment: Environment, **_: Any) -> None:
        """The master says that the run ends."""
        if self.plan is not None:
            self._drain(self.plan)
        assert environment.runner is not None, "it has told us"
        environment.runner.send_message(DRAINED, {"unsent": self.desk.unsent if self.desk else 0})

    def on_drained(self, msg: Any, **_: Any) -> None:
        """A worker has heard all that it asked for."""
        self.drained += 1
        self.unsent += msg.data["unsent"]

    def on_quitting(self, environment: Environment, **_: Any) -> None:
        """Ends the load, has it judged, and says how locust's process ends; told once more, the judge stops."""
        runner = environment.runner
        if isinstance(runner, WorkerRunner) or self.plan is None:
            return
        if self._concluding is not None:
            self.verifier.stop()
            self._concluding.wait()
            return
        self._concluding = gevent.event.Event()
        try:
            self._conclude(self.plan, environment)
        finally:
            self._concluding.set()

    def _conclude(self, plan: Plan, environment: Environment) -> None:
        runner = environment.runner
        if runner is not None and runner.state != STATE_INIT:
            runner.quit()
            if vars(environment.parsed_options)["csv_prefix"]:
                gevent.sleep(CSV_STATS_INTERVAL_SEC + LOOK_S)  # else locust leaves the last second out of its files
            gauges = None if self.watch is None else self.watch.settle()
            unsent = self.unsent if self.desk is None else self.desk.unsent
            code = conclude(plan, gauges, unsent, self.verifier.judge)
            if code:
                environment.process_exit_code = code


def _classes(options: dict[str, Any]) -> list[type[Caller]]:
    """Who asks, where no classes are named."""
    noise = int(options["noise"])
    if options["trace"]:
        return [Replayer]
    if not noise:
        return [Visitor]
    Noisy.fixed_count = noise
    return [Noisy, Victim]


class Shape(LoadTestShape):
    """The plan's shape: locust asks it once a second how many users there are."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """How many users, and how many more a second; None when it is over."""
        assert self.runner is not None, "locust has set it"
        options = vars(self.runner.environment.parsed_options)
        users, run_s = options["slotfuzz_users"], options["slotfuzz_run_s"]
        at_s = time.perf_counter() - self.start_time
        if at_s >= run_s:
            return None
        period_s = float(options["period"])
        return users_at(options["shape"], at_s, users, run_s, period_s), float(max(users, 1))
