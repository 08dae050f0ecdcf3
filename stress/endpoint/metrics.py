"""Metrics: what `/metrics` tells Prometheus, made at each scrape from the driver's counters and the target's account."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from stress.endpoint.driver import Driver
from stress.endpoint.orders import Outcome
from targets.protocol import Audit

CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(driver: Driver, audit: Audit | None) -> bytes:
    """The metrics as text."""
    return generate_latest(_Collector(driver, audit))


class _Collector:
    """All metrics at one moment."""

    def __init__(self, driver: Driver, audit: Audit | None) -> None:
        self.driver = driver
        self.audit = audit

    def collect(self) -> Iterator[Metric]:
        """One family after another; what a target does not tell is left out."""
        yield from self.requests()
        yield from self.work()
        if self.audit is not None:
            yield from self.storage(self.audit)

    def requests(self) -> Iterator[Metric]:
        """Who waits, who runs, who ended and how."""
        driver = self.driver
        yield GaugeMetricFamily("slotfuzz_requests_waiting", "Requests that were never admitted yet", driver.waiting)
        running = sum(bool(ticket.slots) for ticket in driver.live.values())
        yield GaugeMetricFamily("slotfuzz_requests_running", "Requests that were admitted", running)
        yield GaugeMetricFamily("slotfuzz_queue_max", "Requests that may wait", driver.queue_max)
        ended = CounterMetricFamily("slotfuzz_requests", "Requests that ended, by outcome", labels=["outcome"])
        for outcome in Outcome:
            ended.add_metric([outcome.value], driver.counters.ended[outcome])
        yield ended

    def work(self) -> Iterator[Metric]:
        """Steps, tokens, forwards."""
        counters, watch = self.driver.counters, self.driver.watch
        yield CounterMetricFamily("slotfuzz_steps", "Steps of the target", counters.steps)
        yield CounterMetricFamily("slotfuzz_targets_replaced", "Targets that raised", counters.replaced)
        tokens = CounterMetricFamily("slotfuzz_tokens", "Tokens of requests, by what they were", labels=["kind"])
        tokens.add_metric(["prompt"], counters.prompt_tokens)
        tokens.add_metric(["cached"], counters.cached_tokens)
        tokens.add_metric(["new"], counters.new_tokens)
        yield tokens
        if not watch.watches:
            return
        yield CounterMetricFamily("slotfuzz_forwards", "Forwards of the network", watch.forwards)
        yield CounterMetricFamily("slotfuzz_forward_rows", "Rows of these forwards", watch.rows)
        fed = CounterMetricFamily("slotfuzz_forward_tokens", "Places for tokens in these rows, by use", labels=["use"])
        fed.add_metric(["request"], counters.fed_tokens)
        fed.add_metric(["padding"], max(watch.tokens - counters.fed_tokens, 0))
        yield fed
        padding = 1 - counters.fed_tokens / watch.tokens if watch.tokens else 0.0
        yield GaugeMetricFamily("slotfuzz_padding_share", "Share of these places that is padding", max(padding, 0.0))
        if self.audit is not None and watch.forwards:
            fill = watch.rows / (watch.forwards * self.audit.slots)
            yield GaugeMetricFamily("slotfuzz_batch_fill", "Rows of a forward over slots, on average", fill)

    def storage(self, audit: Audit) -> Iterator[Metric]:
        """Slots, pages and bytes, as the target accounts for them."""
        yield GaugeMetricFamily("slotfuzz_slots", "Slots", audit.slots)
        yield GaugeMetricFamily("slotfuzz_slots_used", "Slots that somebody holds", len(audit.held) + len(audit.retiring))
        if audit.pages is not None:
            pages = audit.pages
            yield GaugeMetricFamily("slotfuzz_pages", "Pages", pages.total)
            yield GaugeMetricFamily("slotfuzz_pages_used", "Pages that somebody refers to", len(pages.references))
            yield GaugeMetricFamily("slotfuzz_pages_cached", "Pages kept for a hit", len(pages.cached))
        if audit.allocated is not None:
            yield GaugeMetricFamily("slotfuzz_cache_bytes", "Bytes of K and V that are allocated", audit.allocated)
