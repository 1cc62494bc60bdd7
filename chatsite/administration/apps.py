"""Makes our admin site the one that `admin.site` is, and that apps register with."""

from django.contrib.admin.apps import AdminConfig


class AdministrationConfig(AdminConfig):
    default_site = "chatsite.administration.site.Site"
