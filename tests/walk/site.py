"""A furnished site to walk through: people, what is theirs, and a way to send them anything at all."""

import io
import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.contrib.admin import site as admin_site
from django.core.signals import got_request_exception
from django.db import models, transaction
from django.test import Client
from django.utils import timezone

from billing import adjustments
from billing.models import LimitOverride
from chatsite.handler import Handler
from conversations.tests.support import Person, settle_by_hand, subscribe
from tests.walk.inputs import Headers, Input
from tests.walk.routes import Route, encoded

PASSWORD = "correct horse battery staple"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    trouble: str

    @property
    def kind(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True, kw_only=True)
class Visitor:
    """Somebody who makes requests, with what proves who they are."""

    name: str
    person: Person | None = None
    session: str = ""
    handler: Handler = field(repr=False)

    def credentials(self, route: Route) -> Headers:
        """A key for the API, a session for pages and for an app's account."""
        if self.person is None:
            return ()
        if route.template.startswith("api/v1"):
            return ((b"authorization", f"Bearer {self.person.key}".encode()),)
        if route.template.startswith("api/auth"):
            return ((b"x-session-token", self.session.encode()),)
        return ((b"cookie", f"chatsite_session={self.session}".encode()),)

    def call(
        self, route: Route, method: str, address: bytes, given: Input, *, with_token_check: bool = False
    ) -> Answer:
        """One request through all of Django, as an ASGI server hands it on; what it changes is undone."""
        path, _, query = address.partition(b"?")
        own = dict(self.credentials(route))
        offered = [name for name, _ in given.headers]
        headers = [(name, value) for name, value in own.items() if name not in offered]
        headers += [pair for pair in ((b"host", b"testserver"), *given.headers) if pair[0] != b"host"]
        headers += [pair for pair in given.headers if pair[0] == b"host"] or [(b"host", b"testserver")]
        if b"content-length" not in offered:
            headers.append((b"content-length", str(len(given.body)).encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "root_path": "",
            "query_string": given.query or query,
            "headers": headers,
            "client": ["127.0.0.1", 50_000],
            "server": ["127.0.0.1", 80],
        }
        with undone(), troubles() as seen:
            request, refusal = self.handler.create_request(scope, io.BytesIO(given.body))
            response: Any = refusal
            if request is not None:
                # What a browser's own pages have and a stranger's have not.
                request._dont_enforce_csrf_checks = not with_token_check  # type: ignore[attr-defined]
                response = self.handler.get_response(request)
            body = b"".join(response) if response.streaming else response.content
        return Answer(status=response.status_code, headers=dict(response.headers), body=body, trouble="\n".join(seen))


@contextmanager
def undone() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def troubles() -> Iterator[list[str]]:
    """The last lines of what went wrong in views, for whoever has to mend it."""
    seen: list[str] = []

    def note(**_: Any) -> None:
        seen.append("".join(traceback.format_exc().splitlines(keepends=True)[-6:]))

    got_request_exception.connect(note)
    try:
        yield seen
    finally:
        got_request_exception.disconnect(note)


@dataclass(slots=True, kw_only=True)
class Site:
    """Ada has one of everything, Eve nothing, the administrator may see all."""

    ada: Visitor
    eve: Visitor
    administrator: Visitor
    nobody: Visitor
    values: dict[str, str]

    def visitor(self, name: str) -> Visitor:
        found: Visitor = getattr(self, name)
        return found

    def values_for(self, route: Route) -> dict[str, str]:
        """Values, all Ada's, of the route's parameters. KeyError: say one in `furnish`."""
        values = dict(self.values)
        if route.model_admin is not None:
            model = route.model_admin.model
            values["object_id"] = values["id"] = encoded(str(existing(model).pk))
        return {name: values[name] for name in route.parameters}

    def address(self, route: Route) -> bytes:
        return route.address(self.values_for(route))


def furnish(*, handler: Handler) -> Site:
    """Make people and one row at least of every model that has a screen in the admin."""
    ada, eve, administrator = (Person(f"{name}@example.org") for name in ("ada", "eve", "admin"))
    administrator.user.is_staff = administrator.user.is_superuser = True
    for person in (ada, eve, administrator):
        person.user.set_password(PASSWORD)
        person.user.save()
        EmailAddress.objects.create(user=person.user, email=person.user.email, primary=True, verified=True)
        # What is sent along the way must be refused for what it is, never for a limit.
        subscribe(person, concurrent_runs=100_000)
    TOTP.activate(ada.user, generate_totp_secret())
    RecoveryCodes.activate(ada.user)
    chat = ada.new_chat(title="Ada's")
    settle_by_hand(ada.sent(chat, turn="t0")["run"]["id"])
    run = ada.sent(chat, turn="t1")["run"]["id"]
    other = ada.new_chat(title="Another")
    settle_by_hand(ada.sent(other, turn="t0")["run"]["id"], status="failed")
    visitors = {
        "ada": _visitor("ada", ada, handler),
        "eve": _visitor("eve", eve, handler),
        "administrator": _visitor("administrator", administrator, handler),
        "nobody": Visitor(name="nobody", handler=handler),
    }
    moment = timezone.now()
    adjustments.adjust(
        user_id=ada.user.pk, tokens=-5, cost=0, reason="x", author_id=None, author_email="admin@example.org", now=moment
    )
    LimitOverride.objects.create(user=ada.user, note="x")
    for model in admin_site._registry:
        existing(model)
    device = UserSession.objects.get(user=ada.user)
    return Site(
        **visitors,
        values={
            "chat_id": chat,
            "run_id": run,
            "key_id": str(ada.user.api_keys.get().pk),
            "device_id": str(device.pk),
            "uidb36": "1",
            "key": "abc-123",
            "token": "abc:123",
            "content_type_id": str(apps.get_model("contenttypes", "ContentType").objects.order_by("pk")[0].pk),
            "object_id": str(ada.user.pk),
            "id": str(ada.user.pk),
            "app_label": "accounts",
            "url": "nothing/of/that/kind",
            "name": "not_found",
        },
    )


def _visitor(name: str, person: Person, handler: Handler) -> Visitor:
    browser = Client()
    browser.force_login(person.user, backend="allauth.account.auth_backends.AuthenticationBackend")
    session = browser.session
    UserSession.objects.create(user=person.user, ip="127.0.0.1", session_key=session.session_key, user_agent="a test")
    assert session.session_key is not None
    return Visitor(name=name, person=person, session=session.session_key, handler=handler)


def existing(model: type[models.Model]) -> models.Model:
    """A row of the model: the first there is, else one made of the plainest values that its fields take."""
    found = model._default_manager.first()
    return found or model._default_manager.create(**_plainest(model))


def _plainest(model: type[models.Model]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for one in model._meta.concrete_fields:
        if one.primary_key or one.has_default() or one.null or (one.blank and one.empty_strings_allowed):
            continue
        if isinstance(one, models.ForeignKey):
            values[one.name] = existing(one.related_model)
        elif isinstance(one, models.DateTimeField):
            values[one.name] = timezone.now()
        elif isinstance(one, models.DateField):
            values[one.name] = timezone.now().date()
        elif isinstance(one, models.UUIDField):
            values[one.name] = UUID(int=7)
        elif isinstance(one, models.JSONField):
            values[one.name] = {}
        elif isinstance(one, models.IntegerField | models.FloatField | models.DecimalField):
            values[one.name] = 1
        elif one.choices:
            values[one.name] = one.choices[0][0]
        else:
            values[one.name] = "x"
    return values
