"""Prometheus metrics of the site, worked out when they are scraped."""

from collections.abc import Iterable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from billing import api as billing
from inference import api as inference

# Attribute of a pool's gauges → what it counts. The engine's own numbers, summed over the pool's workers.
_GAUGES = {
    "workers": "Workers that serve the pool.",
    "slots": "Sequences that the pool's workers take on at most.",
    "running": "Sequences that the pool's engines are working on, as they report it.",
    "waiting": "Sequences that wait inside the pool's engines, as they report it.",
    "kv_usage": "Share of the KV cache in use on the pool's fullest worker, 0 to 1.",
    # No counter: it falls when a worker leaves.
    "output_tokens": "Tokens that the workers alive now have produced since they started.",
}


class PoolCollector(Collector):
    """The pools' numbers at one moment."""

    def collect(self) -> Iterable[Metric]:
        pools = inference.pool_gauges()
        for attribute, meaning in _GAUGES.items():
            gauge = GaugeMetricFamily(f"chatsite_pool_{attribute}", meaning, labels=["pool"])
            for gauges in pools:
                gauge.add_metric([gauges.pool], getattr(gauges, attribute))
            yield gauge


# Attribute of a tier → the metric's name and what it counts.
_TIER_GAUGES = {
    "waiting": ("chatsite_queue_waiting", "Messages of the plan that wait for the pool."),
    "wait_s": ("chatsite_queue_wait_seconds", "How long a message of the plan that comes now would wait."),
    "share": ("chatsite_queue_share", "What the plan had of the pool's service lately, 0 to 1."),
}
_COUNTERS = {
    "refused": ("chatsite_pool_refusals", "Turns that a pool had no place for, and why."),
    "overflowed": ("chatsite_pool_overflows", "Turns that a pool's smaller one took in its place, and why."),
}
_MODES = ("normal", "shed_free", "drain")


class QueueCollector(Collector):
    """The pools' queues by plan, and what was refused. Counters begin anew with Redis."""

    def collect(self) -> Iterable[Metric]:
        pools = inference.watch_pools() or []
        for attribute, (name, meaning) in _TIER_GAUGES.items():
            gauge = GaugeMetricFamily(name, meaning, labels=["pool", "tier"])
            for pool in pools:
                for tier in pool.tiers:
                    gauge.add_metric([pool.slug, tier.plan], getattr(tier, attribute))
            yield gauge
        mode = GaugeMetricFamily("chatsite_pool_mode", "1 for the mode that the pool is in.", labels=["pool", "mode"])
        for pool in pools:
            for each in _MODES:
                mode.add_metric([pool.slug, each], float(pool.mode == each))
        yield mode
        counts = inference.pool_counts()
        for what, (name, meaning) in _COUNTERS.items():
            counter = CounterMetricFamily(name, meaning, labels=["pool", "tier", "reason"])
            for count in counts:
                if count.what == what:
                    counter.add_metric([count.pool, count.tier, count.reason], count.count)
            yield counter


class MeteringCollector(Collector):
    """How far daily usage is behind the ledger."""

    def collect(self) -> Iterable[Metric]:
        meaning = "Events of the ledger that daily usage does not hold yet."
        yield GaugeMetricFamily("chatsite_metering_backlog", meaning, value=billing.metering_backlog())


@never_cache
@csrf_exempt
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The text exposition format. A registry per scrape: nothing is kept between two of them."""
    registry = CollectorRegistry()
    registry.register(PoolCollector())
    registry.register(QueueCollector())
    registry.register(MeteringCollector())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
