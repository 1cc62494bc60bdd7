"""What operators see of metering: `manage.py meter` and how far it is behind."""

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from billing import api as billing
from billing.models import DailyUsage
from billing.tests.support import record
from chatsite.management.commands import meter
from inference import api as inference

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(django_user_model: Any) -> Any:
    return django_user_model.objects.create_user(email="ada@example.org")


def test_it_works_the_backlog_off_and_says_how_far_it_is(
    ada: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_TELL_EVERY", 1)
    for _ in range(3):
        record(ada)
    call_command("meter")
    assert billing.metering_backlog() == 0
    assert DailyUsage.objects.get().runs == 3
    out, err = capsys.readouterr()
    assert (out, err) == ("", "3 events worked off, 0 left\n" * 2)
    call_command("meter")
    assert capsys.readouterr().err == "0 events worked off, 0 left\n"


def test_metrics_tell_how_many_events_are_left(ada: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "pool_gauges", list)

    def told() -> float:
        [family] = [
            each
            for each in text_string_to_metric_families(client.get("/metrics").content.decode())
            if each.name == "chatsite_metering_backlog"
        ]
        return float(family.samples[0].value)

    for _ in range(3):
        record(ada)
    assert told() == 3
    call_command("meter")
    assert told() == 0


def test_a_rebuild_makes_every_day_anew(ada: Any, capsys: pytest.CaptureFixture[str]) -> None:
    record(ada)
    call_command("meter")
    DailyUsage.objects.update(runs=7)
    call_command("meter")
    assert DailyUsage.objects.get().runs == 7, "nothing says that it is out of date"
    capsys.readouterr()
    call_command("meter", "--rebuild")
    assert DailyUsage.objects.get().runs == 1
    assert capsys.readouterr().err == "2026-03-01: 1 to be metered\n1 events worked off, 0 left\n"
