"""The plans to begin with, and a database that refuses subscriptions of one user that overlap."""

import uuid_utils.compat
from django.db import migrations

# A table whose foreign keys are still to be checked cannot be altered.
_POSTGRES = """
SET CONSTRAINTS ALL IMMEDIATE;
CREATE EXTENSION IF NOT EXISTS btree_gist;
ALTER TABLE billing_subscription ADD CONSTRAINT subscription_no_overlap
    EXCLUDE USING gist (user_id WITH =, tstzrange(starts_at, ends_at) WITH &&);
"""
_POSTGRES_BACK = "ALTER TABLE billing_subscription DROP CONSTRAINT subscription_no_overlap"

# Times are text of one format, which sorts as they do.
_SQLITE = """
CREATE TRIGGER subscription_no_overlap_{event} BEFORE {event} ON billing_subscription
WHEN EXISTS (
    SELECT 1 FROM billing_subscription other
    WHERE other.user_id = NEW.user_id AND other.id <> NEW.id
    AND (NEW.ends_at IS NULL OR other.starts_at < NEW.ends_at)
    AND (other.ends_at IS NULL OR other.ends_at > NEW.starts_at)
)
BEGIN SELECT RAISE(ABORT, 'subscription_no_overlap'); END
"""
_EVENTS = ("INSERT", "UPDATE")


def part(apps, schema_editor):
    """Subscriptions that overlap end where the next one begins; of two that begin together the later made stays."""
    subscriptions = apps.get_model("billing", "Subscription").objects
    before = None
    for one in subscriptions.order_by("user_id", "starts_at", "id"):
        if (
            before is not None
            and before.user_id == one.user_id
            and (not before.ends_at or before.ends_at > one.starts_at)
        ):
            if before.starts_at == one.starts_at:
                before.delete()
            else:
                before.ends_at = one.starts_at
                before.save(update_fields=["ends_at"])
        before = one


def refuse_overlaps(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(_POSTGRES)
    else:
        for event in _EVENTS:
            schema_editor.execute(_SQLITE.format(event=event))


def allow_overlaps(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(_POSTGRES_BACK)
    else:
        for event in _EVENTS:
            schema_editor.execute(f"DROP TRIGGER subscription_no_overlap_{event}")


def seed(apps, schema_editor):
    plan = apps.get_model("billing", "Plan")
    plan.objects.filter(slug="free", budget_tokens=None, messages_per_hour=None).update(
        budget_tokens=1_000_000, refill_per_hour=250_000, messages_per_hour=600
    )
    paid = {
        "plus": {
            "name": "Plus",
            "weight": 4,
            "budget_tokens": 5_000_000,
            "refill_per_hour": 1_000_000,
            "messages_per_hour": 2_000,
            "concurrent_runs": 40,
        },
        "pro": {
            "name": "Pro",
            "weight": 10,
            "budget_tokens": 20_000_000,
            "refill_per_hour": 4_000_000,
            "concurrent_runs": 80,
        },
    }
    for slug, numbers in paid.items():
        plan.objects.get_or_create(slug=slug, defaults={"id": uuid_utils.compat.uuid7(), **numbers})


class Migration(migrations.Migration):
    dependencies = [("billing", "0004_quotas")]
    operations = [
        migrations.RunPython(part, migrations.RunPython.noop),
        migrations.RunPython(refuse_overlaps, allow_overlaps),
        migrations.RunPython(seed, migrations.RunPython.noop),
    ]
