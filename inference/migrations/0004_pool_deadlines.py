"""Deadlines: how long a pool's runs may wait and generate, how often they may be begun, when an engine counts as hung."""

from datetime import datetime, timedelta

from django.db import migrations, models
from django.utils import timezone


def soon() -> datetime:
    """For runs that are active while this is applied: enough to end as they would have."""
    return timezone.now() + timedelta(minutes=15)


class Migration(migrations.Migration):
    dependencies = [("inference", "0003_run_retried_at")]

    operations = [
        migrations.AddField(
            "modelpool",
            "queue_wait_s",
            models.PositiveIntegerField(
                default=300,
                help_text="How long a message may wait for a worker before it fails.",
                verbose_name="queue wait (s)",
            ),
        ),
        migrations.AddField(
            "modelpool",
            "generation_s",
            models.PositiveIntegerField(
                default=900,
                help_text="From the first worker's start to the end, changes of worker included; then the answer breaks off.",
                verbose_name="generation deadline (s)",
            ),
        ),
        migrations.AddField(
            "modelpool",
            "max_epochs",
            models.PositiveIntegerField(
                default=3,
                help_text="Workers that may be lost over one answer before it breaks off.",
                verbose_name="attempts",
            ),
        ),
        migrations.AddField(
            "modelpool",
            "stall_s",
            models.PositiveIntegerField(
                default=20,
                help_text="An engine that has work and finishes no step for so long is replaced; above its longest step.",
                verbose_name="stall bound (s)",
            ),
        ),
        migrations.AddField(
            "run",
            "deadline_at",
            models.DateTimeField(
                default=soon, help_text="Of the wait until its first epoch begins, then of the generation."
            ),
            preserve_default=False,
        ),
        migrations.AlterField(
            "attempt",
            "outcome",
            models.CharField(
                choices=[
                    ("running", "Running"),
                    ("done", "Done"),
                    ("cancelled", "Cancelled"),
                    ("failed", "Failed"),
                    ("interrupted", "Interrupted"),
                    ("lost", "Lost"),
                    ("drained", "Drained"),
                ],
                default="running",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            "modelpool",
            models.CheckConstraint(
                condition=models.Q(queue_wait_s__gte=1, queue_wait_s__lte=14_400), name="pool_queue_wait"
            ),
        ),
        migrations.AddConstraint(
            "modelpool",
            models.CheckConstraint(
                condition=models.Q(generation_s__gte=1, generation_s__lte=14_400), name="pool_generation"
            ),
        ),
        migrations.AddConstraint(
            "modelpool",
            models.CheckConstraint(condition=models.Q(max_epochs__gte=1, max_epochs__lte=20), name="pool_max_epochs"),
        ),
        migrations.AddConstraint(
            "modelpool",
            models.CheckConstraint(condition=models.Q(stall_s__gte=1, stall_s__lte=3_600), name="pool_stall"),
        ),
    ]
