"""How the API's schema describes refusals: by which codes each operation can be refused."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers

from chatsite.problem_codes import CODES
from chatsite.problem_kinds import TABLE
from chatsite.problems import CONTENT_TYPE

_ALWAYS = (
    "malformed",
    "not_authenticated",
    "invalid_api_key",
    "invalid_token",
    "not_acceptable",
    "throttled",
    "internal_error",
    "unavailable",
)
_WITH_BODY = ("invalid", "too_large", "unsupported_media_type")
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which it is worth trying again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


class ProblemSerializer(serializers.Serializer[Any]):
    """A problem document (RFC 9457). More members may come with a code: see its page."""

    type = serializers.CharField(help_text="The address of the page about the code.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="For people.")
    code = serializers.CharField(help_text="Stable; decide by it.")
    request_id = serializers.CharField(required=False, help_text="Finds the request in the site's log.")
    retry_after = serializers.IntegerField(required=False, help_text="Seconds.")
    errors = serializers.DictField(  # type: ignore[assignment]  # the member's name
        required=False, help_text="With `invalid`: field → its reasons."
    )


class Schema(AutoSchema):
    """Adds the refusals. A view names its own in `refusals`: method → classes of errors, as the table knows them."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is not None:
            by_status: dict[HTTPStatus, list[str]] = {}
            for name in self._codes(operation):
                status = CODES[name].status
                assert status is not None
                by_status.setdefault(status, []).append(name)
            for status, names in sorted(by_status.items()):
                operation["responses"][str(status.value)] = self._refusal(status, names)
        return operation

    def get_summary(self) -> str:
        """The first line of the description, for lists of operations."""
        return str(self.get_description()).partition("\n")[0]

    def _codes(self, operation: dict[str, Any]) -> Iterable[str]:
        names = dict.fromkeys(_ALWAYS)
        if self.method != "GET":
            names["permission_denied"] = None
        if "requestBody" in operation:
            names |= dict.fromkeys(_WITH_BODY)
        parameters = {parameter["in"] for parameter in operation.get("parameters", ())}
        if "path" in parameters:
            names["not_found"] = None
        if "query" in parameters:
            names["invalid"] = None
        for error in getattr(self.view, "refusals", {}).get(self.method.lower(), ()):
            names[TABLE[error].code] = None
        return names

    def _refusal(self, status: HTTPStatus, names: list[str]) -> dict[str, Any]:
        problem = self.resolve_serializer(ProblemSerializer, "response").ref
        codes = ", ".join(f"[`{name}`](/problems/{name})" for name in names)
        waits = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        return {
            "description": f"{status.phrase}: {codes}.",
            "content": {CONTENT_TYPE: {"schema": problem}},
            # New codes may come: a client takes one that it does not know for its status.
            "x-codes": names,
            **({"headers": _RETRY_AFTER} if waits else {}),
        }
