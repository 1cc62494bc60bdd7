"""/healthz, /readyz and /metrics."""

from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from inference import api as inference
from inference.contracts import PoolCount, PoolGauges, PoolWatch, TierWatch

BUSY = PoolGauges(pool="default", workers=2, slots=64, running=3, waiting=1, kv_usage=0.25, output_tokens=900)
IDLE = PoolGauges(pool="large", workers=0, slots=0, running=0, waiting=0, kv_usage=0.0, output_tokens=0)


def test_a_live_process_says_so_without_asking_anything(client: Client) -> None:
    response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert "no-cache" in response.headers["Cache-Control"]


def test_ready_means_that_some_pool_can_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "ready_pools", lambda: ["default"])
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"ready": True, "pools": ["default"]})


def test_without_a_worker_the_site_is_not_ready_which_is_no_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inference, "ready_pools", list)
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (503, {"ready": False, "pools": []})
    assert caplog.records == []


def test_without_a_database_the_site_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_database(**_: Any) -> list[str]:
        raise OperationalError("connection refused")

    monkeypatch.setattr(inference, "ready_pools", no_database)
    assert client.get("/readyz").status_code == 503


@pytest.mark.django_db
def test_metrics_give_each_pool_the_numbers_of_its_engines(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "pool_gauges", lambda: [BUSY, IDLE])
    monkeypatch.setattr(inference, "watch_pools", lambda: None)
    monkeypatch.setattr(inference, "pool_counts", list)
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("pool")): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }
    assert samples[("chatsite_pool_running", "default")] == 3
    assert samples[("chatsite_pool_waiting", "default")] == 1
    assert samples[("chatsite_pool_workers", "default")] == 2
    assert samples[("chatsite_pool_kv_usage", "default")] == 0.25
    assert samples[("chatsite_pool_output_tokens", "default")] == 900
    assert samples[("chatsite_pool_running", "large")] == 0


@pytest.mark.django_db
def test_metrics_give_each_plan_its_part_of_the_queue_and_count_what_was_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = TierWatch(
        plan="free", weight=1, is_free=True, due=0.1, share=0.25, waiting=7, users=3, wait_s=12.5
    )  # fmt: skip
    full = PoolWatch(
        id=UUID(int=1), slug="default", name="Default", is_open=True, mode="shed_free", depth=10, waiting=7, begun=0,
        pending=0, is_squeezed=False, tiers=[free], workers=[],
    )  # fmt: skip
    counts = [
        PoolCount(what="refused", pool="default", tier="free", reason="full", count=5),
        PoolCount(what="overflowed", pool="default", tier="free", reason="full", count=4),
    ]
    monkeypatch.setattr(inference, "pool_gauges", list)
    monkeypatch.setattr(inference, "watch_pools", lambda: [full])
    monkeypatch.setattr(inference, "pool_counts", lambda: counts)
    told = client.get("/metrics").content.decode()
    for line in (
        'chatsite_queue_waiting{pool="default",tier="free"} 7.0',
        'chatsite_queue_wait_seconds{pool="default",tier="free"} 12.5',
        'chatsite_queue_share{pool="default",tier="free"} 0.25',
        'chatsite_pool_mode{mode="normal",pool="default"} 0.0',
        'chatsite_pool_mode{mode="shed_free",pool="default"} 1.0',
        'chatsite_pool_refusals_total{pool="default",reason="full",tier="free"} 5.0',
        'chatsite_pool_overflows_total{pool="default",reason="full",tier="free"} 4.0',
    ):
        assert line in told.splitlines()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
