"""/healthz, /readyz and /metrics."""

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from inference import api as inference
from inference.contracts import PoolGauges

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


def test_metrics_give_each_pool_the_numbers_of_its_engines(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "pool_gauges", lambda: [BUSY, IDLE])
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels["pool"]): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }
    assert samples[("chatsite_pool_running", "default")] == 3
    assert samples[("chatsite_pool_waiting", "default")] == 1
    assert samples[("chatsite_pool_workers", "default")] == 2
    assert samples[("chatsite_pool_kv_usage", "default")] == 0.25
    assert samples[("chatsite_pool_output_tokens", "default")] == 900
    assert samples[("chatsite_pool_running", "large")] == 0


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
