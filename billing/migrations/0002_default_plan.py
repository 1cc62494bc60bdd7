"""The plan of users without a subscription."""

import uuid_utils.compat
from django.db import migrations


def add(apps, schema_editor):
    plan = apps.get_model("billing", "Plan")
    plan.objects.create(id=uuid_utils.compat.uuid7(), slug="free", name="Free", is_default=True, concurrent_runs=20)


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
