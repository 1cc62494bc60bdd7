"""The pool of the embedded model: a window of 4,096 tokens, nearly greedy sampling.

The system prompt is the one that SmolLM2 was tuned with: with others the small model drifts into other languages.
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
        system_prompt="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    )


class Migration(migrations.Migration):
    dependencies = [("inference", "0001_initial")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
