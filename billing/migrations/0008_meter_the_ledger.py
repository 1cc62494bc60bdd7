"""Have what the ledger holds already metered: an event for every user and day, and the sums of days without a name."""

from datetime import UTC
from itertools import islice

import uuid_utils.compat
from django.db import migrations, models
from django.db.models import Count, Q, Sum
from django.db.models.functions import TruncDate

_BATCH = 2_000
_FIGURES = {
    "runs": Count("run_id", filter=~Q(reason="lost"), distinct=True),
    "prompt": Sum("prompt_tokens"),
    "cached": Sum("cached_tokens"),
    "output": Sum("output_tokens"),
    "wasted": Sum("wasted_tokens"),
    "paid": Sum("cost"),
}


def meter(apps, schema_editor):
    entries = apps.get_model("billing", "UsageEntry").objects.order_by()
    daily = apps.get_model("billing", "DailyUsage").objects
    events = apps.get_model("billing", "UsageEvent").objects
    by_day = entries.annotate(day=TruncDate("created_at", tzinfo=UTC))
    days = by_day.filter(user__isnull=False).values_list("user_id", "day").distinct().iterator()
    while batch := list(islice(days, _BATCH)):
        events.bulk_create([events.model(user_id=user_id, day=day, pool="") for user_id, day in batch])
    for day, pool, runs, prompt, cached, output, wasted, paid in (
        by_day.filter(user__isnull=True)
        .values("day", "pool")
        .annotate(**_FIGURES)
        .values_list("day", "pool", *_FIGURES)
    ):
        daily.create(
            id=uuid_utils.compat.uuid7(),
            day=day,
            pool=pool,
            runs=runs,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            wasted_tokens=wasted,
            cost=paid,
        )


class Migration(migrations.Migration):
    dependencies = [("billing", "0007_ledger_by_pool")]
    operations = [
        migrations.AddIndex(
            model_name="usageevent",
            index=models.Index(fields=["user_id", "day"], name="usage_event_user_day"),
        ),
        migrations.RunPython(meter, migrations.RunPython.noop),
    ]
