"""Answers say whether they begin amid reasoning, and jobs when they were last wanted and how long a summary may be."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("conversations", "0010_job_opens_reasoning")]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="message",
            name="opens_reasoning",
            field=models.BooleanField(db_default=False, default=False, editable=False),
        ),
        migrations.AddField(
            model_name="job",
            name="most_tokens",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.RenameField(model_name="job", old_name="created_at", new_name="wanted_at"),
        migrations.AlterField(
            model_name="job",
            name="wanted_at",
            field=models.DateTimeField(help_text="When it was last wanted."),
        ),
    ]
