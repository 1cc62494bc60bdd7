"""Invitations, registration modes, the first administrator, accounts that are closing."""

import django.db.models.deletion
import django.utils.timezone
import uuid_utils.compat
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="closing_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="Deleted by its owner; goes when its last answer has ended.",
                null=True,
            ),
        ),
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("sha256", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "email",
                    models.EmailField(
                        blank=True,
                        help_text="Empty: whoever has the link may use any address.",
                        max_length=254,
                        verbose_name="e-mail",
                    ),
                ),
                ("note", models.CharField(blank=True, help_text="For administrators.", max_length=200)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "used_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="Registration",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                (
                    "mode",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("open", "open: everybody"),
                            ("invitation", "invitation: who has one"),
                            ("closed", "closed: nobody"),
                        ],
                        help_text="Empty: as the REGISTRATION setting says.",
                        max_length=16,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "registration",
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="accounts_one_registration")
                ],
            },
        ),
        migrations.CreateModel(
            name="FirstAdministrator",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("claimed_at", models.DateTimeField()),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="accounts_one_first_administrator")
                ],
            },
        ),
    ]
