"""The trail knows exports."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("audit", "0001_trail"),
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
                    ("view", "view content"),
                    ("export", "Export"),
                ],
                max_length=16,
            ),
        ),
    ]
