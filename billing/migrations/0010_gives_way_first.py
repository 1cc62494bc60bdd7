"""Which plans give way first when a pool is full: of the seeded ones the free one."""

from django.db import migrations, models


def seed(apps, schema_editor):
    apps.get_model("billing", "Plan").objects.filter(slug="free").update(is_free=True)


class Migration(migrations.Migration):
    dependencies = [("billing", "0009_words")]
    operations = [
        migrations.AddField(
            model_name="plan",
            name="is_free",
            field=models.BooleanField(
                "gives way first",
                default=False,
                help_text="When a pool is full: refused before others are, but never squeezed below the pool's floor.",
            ),
        ),
        migrations.RunPython(seed, migrations.RunPython.noop),
    ]
