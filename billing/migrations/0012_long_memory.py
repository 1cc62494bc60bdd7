"""Whether a plan's chats have a long memory: none has, until somebody says so."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0011_purposes")]
    operations = [
        migrations.AddField(
            model_name="plan",
            name="long_memory",
            field=models.BooleanField(
                default=False,
                help_text="Older turns that a chat's prompt has no room for are looked up again where a message is about them. It costs prompt tokens and waiting time, and needs MEMORY to be on (docs/context.md).",
            ),
        ),
    ]
