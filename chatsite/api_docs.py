"""The API's description of itself: the OpenAPI document, and Swagger UI over it as a page."""

from functools import cache
from threading import Lock
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request
from rest_framework.response import Response

_generating = Lock()


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return document


class SchemaView(SpectacularAPIView):
    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The OpenAPI document, as JSON or YAML; the same for everybody, so that it is made once."""
        # One thread at a time: of two that are the first, one would meet the generator's own tables half filled.
        with _generating:
            document = _document()
        return Response(document)


@ensure_csrf_cookie
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Swagger UI, for everybody, as the schema is. Requests that are tried out go with the visitor's session and its
    CSRF token, or with the bearer token that is given to the page."""
    return render(request, "api_docs.html", {"csrf_cookie": settings.CSRF_COOKIE_NAME})
