"""The pool of the embedded model: a window of 4,096 tokens, nearly greedy sampling."""

import uuid6
from django.db import migrations


def add(apps, schema_editor):
    pool = apps.get_model("inference", "ModelPool")
    pool.objects.create(
        id=uuid6.uuid7(),
        slug="default",
        name="Default",
        is_default=True,
        context_window=4096,
        max_output_tokens=1024,
        max_concurrent_runs=32,
        temperature=0.1,
        top_p=0.95,
        system_prompt="You are a helpful assistant.",
    )


class Migration(migrations.Migration):
    dependencies = [("inference", "0001_initial")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
