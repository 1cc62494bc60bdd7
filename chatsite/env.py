"""The process environment, read into typed values: the only place that knows the variables' names."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
ENGINES = ("vllm", "scripted")
LOG_FORMATS = ("auto", "console", "json")
REGISTRATIONS = ("open", "invitation", "closed")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class RedisUnknown(ImproperlyConfigured, ConnectionError):
    """No Redis is named by REDIS_URL, nor is an embedded one running: nothing can be connected to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What an operator can set. `None` and empty tuples stand for unset.

    `workers` is how many worker processes this machine runs for the default pool, each with an engine; `worker_slots`
    is how many answers each of them generates at once; 0 starts no worker here. `two_pools` adds a second pool, which
    serves `small_model`, and a worker of it.
    `hsts_seconds` is in seconds; `model` is a directory or a Hugging Face name; `log_format` "auto" leaves
    the choice to the settings module, and so does an unset `registration`; requests per minute of 0 are unlimited.
    `currency` is the code that prices are shown with; `titles` and `summaries` say whether models make them. `memory`
    says whether plans can give chats a long one.
    """

    secret_key: str | None = field(repr=False)
    debug: bool
    allowed_hosts: tuple[str, ...]
    csrf_trusted_origins: tuple[str, ...]
    behind_tls_proxy: bool
    hsts_seconds: int
    hsts_subdomains: bool
    database_url: str | None = field(repr=False)
    state_dir: Path
    host: str
    port: int
    model: str
    two_pools: bool
    small_model: str
    engine: str
    workers: int
    worker_slots: int
    log_format: str
    log_level: str
    registration: str | None
    email_url: str | None = field(repr=False)
    email_from: str
    api_requests_per_minute: int
    api_requests_per_minute_per_address: int
    currency: str
    titles: bool
    summaries: bool
    memory: bool


def read() -> Environment:
    """Read and check every variable. Raises ImproperlyConfigured naming the one that is wrong."""
    state_dir = state_directory()
    two_pools = _boolean("TWO_POOLS", default=False)
    return Environment(
        secret_key=_text("SECRET_KEY"),
        debug=_boolean("DEBUG", default=False),
        allowed_hosts=_items("ALLOWED_HOSTS"),
        csrf_trusted_origins=_items("CSRF_TRUSTED_ORIGINS"),
        behind_tls_proxy=_boolean("BEHIND_TLS_PROXY", default=False),
        hsts_seconds=_integer("HSTS_SECONDS", default=3600, low=0, high=2**31 - 1),
        hsts_subdomains=_boolean("HSTS_SUBDOMAINS", default=True),
        database_url=_text("DATABASE_URL"),
        state_dir=state_dir,
        host=_text("HOST") or "127.0.0.1",
        port=_integer("PORT", default=8000, low=1, high=65_535),
        model=_text("MODEL") or str(state_dir / "models" / "smollm2-135m-instruct"),
        two_pools=two_pools,
        small_model=_text("SMALL_MODEL") or str(state_dir / "models" / "tiny-random-llama"),
        engine=_choice("ENGINE", default="vllm", among=ENGINES),
        workers=_integer("WORKERS", default=2 if two_pools else 1, low=1, high=64),
        worker_slots=_integer("WORKER_SLOTS", default=64, low=0, high=4096),
        log_format=_choice("LOG_FORMAT", default="auto", among=LOG_FORMATS),
        log_level=_choice("LOG_LEVEL", default="INFO", among=LOG_LEVELS),
        registration=_choice("REGISTRATION", default="", among=("", *REGISTRATIONS)) or None,
        email_url=_text("EMAIL_URL"),
        email_from=_text("EMAIL_FROM") or "Chatsite <noreply@localhost>",
        api_requests_per_minute=_integer("API_REQUESTS_PER_MINUTE", default=6_000, low=0, high=10**6),
        api_requests_per_minute_per_address=_integer(
            "API_REQUESTS_PER_MINUTE_PER_ADDRESS", default=30_000, low=0, high=10**7
        ),
        currency=_currency("CURRENCY", default="USD"),
        titles=_boolean("TITLES", default=True),
        summaries=_boolean("SUMMARIES", default=True),
        memory=_boolean("MEMORY", default=False),
    )


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def state_directory() -> Path:
    """Where everything the embedded parts write lives (STATE_DIR, by default ./var)."""
    return Path(_text("STATE_DIR") or BASE_DIR / "var").expanduser().resolve()


def redis_url() -> str:
    """The Redis to use, asked for when it is first needed.

    REDIS_URL wins. Without it the supervisor runs an embedded server and leaves its address in
    `run/redis.url` under the state directory, for one-off commands. Raises RedisUnknown.
    """
    url = _text("REDIS_URL")
    if url is not None:
        return url
    left_by_supervisor = state_directory() / "run" / "redis.url"
    try:
        url = left_by_supervisor.read_text(encoding="utf-8").strip()
    except OSError:
        url = ""
    if not url:
        raise RedisUnknown(
            f"REDIS_URL is not set and {left_by_supervisor} names no server: is `manage.py serve` running?"
        )
    return url


def _text(name: str) -> str | None:
    """A variable set to nothing counts as unset, as Compose files and systemd units write it."""
    return os.environ.get(name, "").strip() or None


def _items(name: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in (_text(name) or "").split(",") if item.strip())


def _boolean(name: str, *, default: bool) -> bool:
    value = _text(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be true or false, not {value!r}.")


def _integer(name: str, *, default: int, low: int, high: int) -> int:
    value = _text(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
        raise ImproperlyConfigured(f"{name} must be a whole number from {low} to {high}, not {value!r}.")
    return int(value)


def _choice(name: str, *, default: str, among: tuple[str, ...]) -> str:
    value = _text(name) or default
    if value not in among:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(among)}, not {value!r}.")
    return value


def _currency(name: str, *, default: str) -> str:
    value = _text(name) or default
    if not (len(value) == 3 and value.isascii() and value.isalpha() and value.isupper()):
        raise ImproperlyConfigured(f"{name} must be three capital letters, as in ISO 4217 (EUR), not {value!r}.")
    return value
