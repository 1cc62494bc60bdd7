"""The trail knows the modes of pools."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("audit", "0002_exports"),
    ]

    operations = [
        migrations.AlterField(
            model_name="auditentry",
            name="action",
            field=models.CharField(
                choices=[
                    ("add", "Add"),
                    ("change", "Change"),
                    ("delete", "Delete"),
                    ("suspend", "Suspend"),
                    ("reinstate", "Reinstate"),
                    ("cancel", "Cancel"),
                    ("revoke", "Revoke"),
                    ("open", "Open"),
                    ("close", "Close"),
                    ("normal", "back to normal"),
                    ("shed_free", "shed free plans"),
                    ("drain", "Drain"),
                    ("view", "view content"),
                    ("export", "Export"),
                ],
                max_length=16,
            ),
        ),
    ]
