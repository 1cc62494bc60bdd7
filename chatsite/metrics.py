"""Prometheus metrics of the site, worked out when they are scraped."""

from collections.abc import Iterable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

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


@never_cache
@csrf_exempt
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The text exposition format. A registry per scrape: nothing is kept between two of them."""
    registry = CollectorRegistry()
    registry.register(PoolCollector())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
