"""Settings that every installation shares."""

from csp.constants import NONE, SELF

from chatsite import databases, env, logs
from chatsite.settings.accounts import *

environment = env.read()

BASE_DIR = env.BASE_DIR
STATE_DIR = environment.state_dir
DEBUG = False
ALLOWED_HOSTS = list(environment.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(environment.csrf_trusted_origins)

INSTALLED_APPS = [
    # First: it replaces runserver with one that speaks ASGI.
    "daphne",
    # django.contrib.admin, with our site.
    "chatsite.administration.apps.AdministrationConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "rest_framework",
    "drf_spectacular",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.headless",
    "chatsite",
    "chatsite.accounts",
    "chatsite.audit",
    "conversations",
    "inference",
    "billing",
]
MIDDLEWARE = [
    "chatsite.middleware.RequestIds",
    "chatsite.middleware.ApiRefusals",
    "django.middleware.security.SecurityMiddleware",
    "chatsite.middleware.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "chatsite.accounts.middleware.SeenSessions",
    "chatsite.accounts.middleware.RateLimitFields",
]
ROOT_URLCONF = "chatsite.urls"
ASGI_APPLICATION = "chatsite.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "conversations.page_context.site_banner",
            ],
        },
    },
]

DATABASES = {"default": databases.configure(url=environment.database_url, state_dir=STATE_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {
        "BACKEND": "chatsite.shared_cache.SharedCache",
        # Asked when it is first needed, as for REDIS_URL_SOURCE below.
        "LOCATION": env.redis_url,
        "KEY_PREFIX": "chatsite:cache",
        # Of each process's own memory, while Redis is away. Beyond it counts are dropped at random.
        "OPTIONS": {"MAX_ENTRIES": 100_000},
    }
}

# Browsers share cookies between the ports of a host: another Django at 127.0.0.1 would overwrite `sessionid`.
SESSION_COOKIE_NAME = "chatsite_session"
SESSION_ENGINE = "chatsite.accounts.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "chatsite.static_finders.SwaggerUiFiles",
]
WHITENOISE_ALLOW_ALL_ORIGINS = False

REST_FRAMEWORK = {
    # The first class words the 401: its challenge is `WWW-Authenticate: Bearer`. Keys come first: they are told by
    # their prefix, and the class of access tokens refuses every bearer that it does not know.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "chatsite.accounts.authentication.ApiKeyAuthentication",
        "chatsite.accounts.authentication.AccessTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["chatsite.accounts.throttling.RequestRate"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["chatsite.parsers.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "chatsite.schema.Schema",
    "EXCEPTION_HANDLER": "chatsite.problems.handle",
    # `?format=` would answer 404 to a value that it does not know, whatever the route takes.
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Chatsite API",
    "DESCRIPTION": "Refusals are problem documents (RFC 9457): [what each code means](/problems/).",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
}

CELERY_BROKER_TRANSPORT_OPTIONS = {
    "global_keyprefix": "chatsite:celery:",
    # Seconds. A message that is not acknowledged by then is delivered again, while its task still runs if
    # that is longer: above the longest run. Lost work is found by lease and reaper, not by redelivery.
    "visibility_timeout": 6 * 3600,
    # Publishing to a dead Redis must fail within about a second, so that a send can answer 503.
    "socket_connect_timeout": 1.0,
    "socket_timeout": 1.0,
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}
CELERY_BROKER_CONNECTION_TIMEOUT = 1.0
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Measured: a publish after a Redis restart goes through without it, and against a hung Redis it adds 2 s.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# A broker's restart must not cancel answers under way: their tickets are not what holds them.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
# Generation tickets name their pool's queue (`pool.<slug>`) when they are published; the rest are jobs.
CELERY_TASK_DEFAULT_QUEUE = "jobs"
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE: dict[str, dict[str, object]] = {
    # One pass takes milliseconds; passes that pile up behind a slow one are worth nothing.
    "reap": {"task": "inference.tasks.reap", "schedule": 1.0, "options": {"expires": 5}},
    "jobs": {"task": "conversations.tasks.dispatch_jobs", "schedule": 1.0, "options": {"expires": 1}},
    "tell": {"task": "inference.tasks.tell", "schedule": 1.0, "options": {"expires": 1}},
    # One look at Redis where nothing was lost.
    "restore": {"task": "inference.tasks.restore", "schedule": 5.0, "options": {"expires": 5}},
    "checkpoint": {"task": "inference.tasks.checkpoint", "schedule": 300.0, "options": {"expires": 300}},
    # Without anything to meter a pass is one query; what it is late for is summed from the ledger meanwhile.
    "meter": {"task": "billing.tasks.meter", "schedule": 10.0, "options": {"expires": 10}},
    # Counted from the last time, which beat keeps over restarts: a machine that sleeps at night gets its turn as well.
    "tidy": {"task": "chatsite.accounts.tasks.tidy", "schedule": 24 * 3600.0, "options": {"expires": 3600}},
    "history": {
        "task": "conversations.tasks.expire_history",
        "schedule": 24 * 3600.0,
        "options": {"expires": 3600},
    },
}
if environment.memory:
    # A pass that finds nothing to do is one query; one at a time is made in each process.
    CELERY_BEAT_SCHEDULE["vectors"] = {
        "task": "conversations.tasks.make_vectors",
        "schedule": 5.0,
        "options": {"expires": 5},
    }
CELERY_BEAT_SCHEDULE_FILENAME = str(STATE_DIR / "run" / "celerybeat-schedule")

# Found when it is first needed: the embedded server's address is not known when settings load.
REDIS_URL_SOURCE = env.redis_url
MODEL = environment.model
ENGINE = environment.engine
# Kinds of `conversations.models.Job` that are done.
BACKGROUND_JOBS = {
    kind
    for kind, wanted in (
        ("title", environment.titles),
        ("summary", environment.summaries),
        ("vectors", environment.memory),
    )
    if wanted
}
# The folder of the model that makes vectors of turns; None = no plan's chats have a long memory.
MEMORY_MODEL = STATE_DIR / "models" / "all-minilm-l6-v2" if environment.memory else None
# Only shown: amounts are stored as millionths of it, and a change converts nothing.
CURRENCY = environment.currency

LOGGING = logs.logging_config(json=environment.log_format == "json", level=environment.log_level)
