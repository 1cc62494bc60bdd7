"""The site's banner and maintenance."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("conversations", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="SiteBanner",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                (
                    "text",
                    models.CharField(
                        blank=True,
                        help_text="Plain text, shown on every page. Empty: no banner, and stock words during maintenance.",
                        max_length=500,
                    ),
                ),
                (
                    "severity",
                    models.CharField(choices=[("info", "Info"), ("warning", "Warning")], default="info", max_length=16),
                ),
                (
                    "maintenance",
                    models.BooleanField(
                        default=False,
                        help_text="Refuse new messages, with the text above. Reading goes on, and so do running answers.",
                    ),
                ),
                (
                    "until",
                    models.DateTimeField(
                        blank=True,
                        help_text="When the maintenance is expected to be over (UTC): shown, and told to clients. It does not end it.",
                        null=True,
                    ),
                ),
            ],
            options={
                "verbose_name": "site banner and maintenance",
                "verbose_name_plural": "site banner and maintenance",
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="site_banner_one")],
            },
        ),
    ]
