"""The pool of the embedded model: a window of 4,096 tokens, nearly greedy sampling.

The system prompt is the one, of some twenty tried, with which the small model neither drifts into other languages nor
loses what it knows: asked for the capitals of Italy, France, Spain and Germany at a temperature of 0.3 it named 80 of 80.
With the one that it was tuned with it named 48, in single tries "Il Coriobella".
"""

import uuid_utils.compat
from django.db import migrations


def add(apps, schema_editor):
    pool = apps.get_model("inference", "ModelPool")
    pool.objects.create(
        id=uuid_utils.compat.uuid7(),
        slug="default",
        name="Default",
        is_default=True,
        context_window=4096,
        max_output_tokens=1024,
        max_concurrent_runs=32,
        temperature=0.1,
        top_p=0.95,
        system_prompt="You are an AI assistant trained to provide factual answers.",
    )


class Migration(migrations.Migration):
    dependencies = [("inference", "0001_initial")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
