"""The site's routes and views that go wrong on purpose."""

from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from uuid import UUID

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from chatsite.problem_kinds import Kind
from chatsite.urls import handler400, handler403, handler404, handler500
from chatsite.urls import urlpatterns as site

__all__ = ["handler400", "handler403", "handler404", "handler500", "urlpatterns"]

RUN_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


class ProbeError(Exception):
    """Base of the errors that the probe raises."""


class Busy(ProbeError):
    def __init__(self) -> None:
        super().__init__("busy")
        self.run_id = RUN_ID
        self._private = "not for clients"
        self.retry_after = 1.2


class Later(ProbeError):
    def __init__(self) -> None:
        super().__init__("the window is used up")
        self.retry_at = timezone.now() + timedelta(seconds=90)


class VeryBusy(Busy):
    """Has no entry of its own."""


ENTRIES = {
    Busy: Kind(status=HTTPStatus.CONFLICT, code="busy", title="Busy", detail="Run {run_id} is under way."),
    Later: Kind(status=HTTPStatus.TOO_MANY_REQUESTS, code="later", title="Later"),
}
ERRORS: dict[str, Callable[[], Exception]] = {
    "busy": Busy,
    "very-busy": VeryBusy,
    "later": Later,
    "unforeseen": lambda: ZeroDivisionError("a secret"),
    "throttled": lambda: Throttled(wait=2.1),
    "http404": lambda: Http404("No Secret matches the given query."),
    "denied": PermissionDenied,
    "suspicious": lambda: SuspiciousOperation("a secret"),
}


def _error(name: str) -> Exception:
    return ERRORS[name]()


class Line(serializers.Serializer[object]):
    product = serializers.CharField()


class Order(serializers.Serializer[object]):
    count = serializers.IntegerField(min_value=1, max_value=10)
    lines = Line(many=True, required=False)


class Probe(APIView):
    def get(self, request: Request) -> Response:
        return Response({"user": str(request.user)})

    def post(self, request: Request) -> Response:
        order = Order(data=request.data)
        order.is_valid(raise_exception=True)
        return Response(order.validated_data)


class Failing(APIView):
    authentication_classes = ()
    permission_classes = ()

    def get(self, request: Request, name: str) -> Response:
        raise _error(name)


def failing_page(request: HttpRequest, name: str) -> HttpResponse:
    raise _error(name)


urlpatterns = [
    path("api/probe", Probe.as_view()),
    path("api/failing/<name>", Failing.as_view()),
    path("api/plain/<name>", failing_page),
    path("failing/<name>", failing_page),
    *site,
]
