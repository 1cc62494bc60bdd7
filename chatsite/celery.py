"""The Celery application that web publishes to and that worker, jobs and beat run."""

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from celery import Celery
from celery.signals import setup_logging, worker_ready

from chatsite import broker, env
from chatsite.tuning import settle_down


class App(Celery):
    """Asks for the broker when it connects: the embedded one is not up yet when settings load."""

    def connection(self, hostname: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return super().connection(hostname or broker_url(env.redis_url()), *args, **kwargs)

    def connection_for_read(self, url: str | None = None, **kwargs: Any) -> Any:
        return super().connection_for_read(url or broker_url(env.redis_url()), **kwargs)

    def connection_for_write(self, url: str | None = None, **kwargs: Any) -> Any:
        return super().connection_for_write(url or broker_url(env.redis_url()), **kwargs)


def broker_url(redis_url: str) -> str:
    """How Celery spells what the Redis client understands.

    A Unix socket has another scheme there, and TLS without `ssl_cert_reqs` would check no certificate.
    """
    parts = urlsplit(redis_url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}?virtual_host={query.get('db', 0)}"
    if parts.scheme == "rediss":
        query.setdefault("ssl_cert_reqs", "required")
    return urlunsplit(parts._replace(query=urlencode(query)))


def _settle_down(**_kwargs: Any) -> None:
    """The engine is loaded by now: its modules are most of what there is."""
    settle_down()


def _keep_django_logging(**_kwargs: Any) -> None:
    """A connected receiver is what stops Celery from replacing the handlers that Django configured."""


broker.install()
app = App("chatsite")
# The current app is per thread, and requests are served in threads of their own: without a default they
# would publish through an app that knows no broker.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
worker_ready.connect(_settle_down)
setup_logging.connect(_keep_django_logging)
