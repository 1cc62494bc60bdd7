"""Messages know whether a smaller model answered. Those before did not have one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0006_answer_ids")]

    operations = [
        migrations.AddField(
            "message",
            "degraded",
            models.BooleanField(
                default=False, db_default=False, help_text="A smaller model answered than was asked for."
            ),
        ),
    ]
