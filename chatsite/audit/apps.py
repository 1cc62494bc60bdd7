"""Registration of the audit app."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "chatsite.audit"
    label = "audit"
    verbose_name = "Audit"
