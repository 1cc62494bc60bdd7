"""Reading the environment."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatsite import env

NAMES = [name.upper() for name in env.Environment.__slots__] + ["REDIS_URL"]


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_an_empty_environment_means_the_embedded_default() -> None:
    read = env.read()
    assert read.database_url is None
    assert read.secret_key is None
    assert read.state_dir == env.BASE_DIR / "var"
    assert (read.host, read.port, read.engine) == ("127.0.0.1", 8000, "vllm")
    assert read.model == str(env.BASE_DIR / "var" / "models" / "smollm2-135m-instruct")
    assert not read.debug
    assert (read.workers, read.two_pools) == (1, False)


def test_two_pools_come_with_two_workers_of_the_default_one_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TWO_POOLS", "1")
    assert env.read().workers == 2
    assert env.read().small_model == str(env.BASE_DIR / "var" / "models" / "tiny-random-llama")
    monkeypatch.setenv("WORKERS", "1")
    assert env.read().workers == 1


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "SECRET_KEY": "s" * 60,
        "DEBUG": "yes",
        "ALLOWED_HOSTS": "a.example, b.example",
        "CSRF_TRUSTED_ORIGINS": "https://a.example",
        "BEHIND_TLS_PROXY": "1",
        "HSTS_SECONDS": "60",
        "HSTS_SUBDOMAINS": "off",
        "DATABASE_URL": "postgres://u:p@h/d",
        "STATE_DIR": str(tmp_path),
        "HOST": "0.0.0.0",
        "PORT": "9000",
        "MODEL": "org/model",
        "TWO_POOLS": "1",
        "SMALL_MODEL": "org/small",
        "ENGINE": "scripted",
        "WORKERS": "3",
        "WORKER_SLOTS": "8",
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "DEBUG",
        "REGISTRATION": "invitation",
        "EMAIL_URL": "smtp+tls://u:p@h:587",
        "EMAIL_FROM": "chat@a.example",
        "API_REQUESTS_PER_MINUTE": "0",
        "API_REQUESTS_PER_MINUTE_PER_ADDRESS": "7",
        "CURRENCY": "EUR",
        "TITLES": "off",
        "SUMMARIES": "off",
        "MEMORY": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert env.read() == env.Environment(
        secret_key="s" * 60,
        debug=True,
        allowed_hosts=("a.example", "b.example"),
        csrf_trusted_origins=("https://a.example",),
        behind_tls_proxy=True,
        hsts_seconds=60,
        hsts_subdomains=False,
        database_url="postgres://u:p@h/d",
        state_dir=tmp_path.resolve(),
        host="0.0.0.0",
        port=9000,
        model="org/model",
        two_pools=True,
        small_model="org/small",
        engine="scripted",
        workers=3,
        worker_slots=8,
        log_format="json",
        log_level="DEBUG",
        registration="invitation",
        email_url="smtp+tls://u:p@h:587",
        email_from="chat@a.example",
        api_requests_per_minute=0,
        api_requests_per_minute_per_address=7,
        currency="EUR",
        titles=False,
        summaries=False,
        memory=True,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_set_to_nothing_counts_as_unset(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    unset = env.read()
    monkeypatch.setenv(name, "  ")
    assert env.read() == unset


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "0"),
        ("PORT", "65536"),
        ("PORT", "-1"),
        ("PORT", "８０"),
        ("HSTS_SECONDS", "1.5"),
        ("WORKERS", "0"),
        ("WORKER_SLOTS", "many"),
        ("ENGINE", "gpt"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("DEBUG", "maybe"),
        ("BEHIND_TLS_PROXY", "2"),
        ("REGISTRATION", "sometimes"),
        ("API_REQUESTS_PER_MINUTE", "-1"),
        ("CURRENCY", "eur"),
        ("CURRENCY", "EURO"),
        ("CURRENCY", "€€€"),
        ("CURRENCY", "E1R"),
    ],
)
def test_a_wrong_value_is_refused_by_the_variables_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=name):
        env.read()


def test_secrets_do_not_show_when_the_environment_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "the-key")
    monkeypatch.setenv("DATABASE_URL", "postgres://u:the-password@h/d")
    assert "the-key" not in repr(env.read())
    assert "the-password" not in repr(env.read())


def test_the_redis_url_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_url(tmp_path, "redis://127.0.0.1:1/0\n")
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:6379/2")
    assert env.redis_url() == "redis://elsewhere:6379/2"


def test_without_it_the_supervisors_file_names_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_url(tmp_path, "redis://127.0.0.1:4711/0\n")
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    assert env.redis_url() == "redis://127.0.0.1:4711/0"


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_no_redis_at_all_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        leave_url(tmp_path, content)
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    with pytest.raises(env.RedisUnknown, match="REDIS_URL"):
        env.redis_url()


def leave_url(state_dir: Path, content: str) -> None:
    (state_dir / "run").mkdir()
    (state_dir / "run" / "redis.url").write_text(content)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("chat.example", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, is_loopback: bool) -> None:
    assert env.is_loopback(host) == is_loopback
