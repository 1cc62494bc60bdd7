"""Log lines."""

import json
import logging
import logging.config
from collections.abc import Iterator

import pytest
import structlog

from chatsite import logs


@pytest.fixture(autouse=True)
def logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def fail(prompt: str) -> None:
    raise ValueError("broken")


def log_a_failure(*, json_lines: bool) -> None:
    logging.config.dictConfig(logs.logging_config(json=json_lines, level="INFO"))
    with structlog.contextvars.bound_contextvars(request_id="request-1"):
        try:
            fail("my private" + " prompt")
        except ValueError:
            structlog.get_logger("chatsite.tests").exception("run_failed", run_id="r-1")


def test_json_lines_hold_the_fields_and_the_requests_id(capsys: pytest.CaptureFixture[str]) -> None:
    log_a_failure(json_lines=True)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["run_id"], line["request_id"]) == ("run_failed", "r-1", "request-1")
    assert (line["level"], line["logger"]) == ("error", "chatsite.tests")
    assert line["exception"][0]["exc_value"] == "broken"


@pytest.mark.parametrize("json_lines", [True, False])
def test_a_traceback_shows_no_local_variables(json_lines: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log_a_failure(json_lines=json_lines)
    written = capsys.readouterr().err
    assert "ValueError" in written
    assert "my private prompt" not in written


def test_the_standard_librarys_loggers_write_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logging.config.dictConfig(logs.logging_config(json=True, level="INFO"))
    with structlog.contextvars.bound_contextvars(request_id="request-2"):
        logging.getLogger("some.library").warning("lost %d of %d", 1, 2)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["request_id"], line["logger"]) == ("lost 1 of 2", "request-2", "some.library")


def test_queries_are_never_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logging.config.dictConfig(logs.logging_config(json=True, level="DEBUG"))
    logging.getLogger("django.db.backends").debug("INSERT ... 'my private prompt'")
    assert capsys.readouterr().err == ""
