"""The admin site: registers every screen on the common base, and shows the dashboard as its front page."""

from collections.abc import Iterable
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path
from django.utils import timezone

from chatsite.administration import dashboard, queues
from chatsite.administration.screens import Screen


class Site(AdminSite):
    index_template = "administration/dashboard.html"

    def register(
        self,
        model_or_iterable: type[Model] | Iterable[type[Model]],
        admin_class: type[ModelAdmin[Any]] | None = None,
        **options: Any,
    ) -> None:
        """Register screens on top of `Screen`: what an app's own class says wins over it, and it over Django's."""
        own = admin_class or ModelAdmin
        if not issubclass(own, Screen):
            bases = (Screen,) if own is ModelAdmin else (own, Screen)
            own = type(own.__name__, bases, {"__module__": own.__module__, "__doc__": own.__doc__})
        super().register(model_or_iterable, own, **options)

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """On the site's page, as everybody's: Django's own has no limit on guesses."""
        return redirect("account_change_password")

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        shown = {"dashboard": dashboard.for_staff(may=request.user.has_perm, now=timezone.now())}
        return super().index(request, shown | (extra_context or {}))

    def get_urls(self) -> list[URLPattern | URLResolver]:
        return [path("queues/", self.admin_view(self.queues), name="queues"), *super().get_urls()]

    def queues(self, request: HttpRequest) -> TemplateResponse:
        """Pools' queues, live, for whoever may see pools."""
        if not request.user.has_perm("inference.view_modelpool"):
            raise PermissionDenied
        shown = {"title": "Queues", "queues": queues.for_page(now=timezone.now())}
        return TemplateResponse(request, "administration/queues.html", self.each_context(request) | shown)
