"""What a log line looks like: structlog's processors, for structlog's and the standard library's loggers.

Lines carry ids, states, counts and durations, never the text of a chat.
"""

from typing import Any

import structlog
from structlog.typing import Processor

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(allow=("status_code",)),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]
# Without local variables: they hold prompts and answers.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_structlog() -> None:
    """Hand structlog's events to the standard library, where LOGGING decides what becomes of them."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def logging_config(*, json: bool, level: str) -> dict[str, Any]:
    """Django's LOGGING: one stream handler to stderr, JSON lines, or text with `key=value` for people."""
    last: list[Processor] = (
        [_TRACEBACKS, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": "structlog.stdlib.ProcessorFormatter",
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
                "foreign_pre_chain": _SHARED,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django's own handlers would print every line a second time, or mail it.
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # A refusal is the client's affair, and stands in the access log; only 5xx is news here.
            "django.request": {"level": "ERROR"},
            # A scanner's business, one traceback per request.
            "django.security.DisallowedHost": {"level": "CRITICAL"},
            # Two lines per ticket, the first of them before the work begins. Failures are errors and are shown.
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            # Queries carry message text as parameters.
            "django.db.backends": {"level": "WARNING"},
        },
    }
