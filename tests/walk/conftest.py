"""One furnished site for all tests of a module: every request that they make is undone."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from chatsite.handler import Handler
from conversations.tests import support
from inference import store
from inference.testing import CHATML, tiny_tokenizer
from tests import services
from tests.walk.site import Site, furnish


@pytest.fixture(scope="module")
def site(
    valkey_server: services.Valkey,
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    django_db_blocker: Any,
) -> Iterator[Site]:
    if valkey_server.process is None:
        valkey_server.start()
    with (
        pytest.MonkeyPatch.context() as patch,
        override_settings(MODEL=str(_tiny_model(tmp_path_factory.mktemp("tiny-model"))), ENGINE="scripted"),
        django_db_blocker.unblock(),
        transaction.atomic(),
    ):
        patch.setenv("REDIS_URL", valkey_server.url)
        # A line for each of tens of thousands of requests is a third of their time.
        logging.disable(logging.CRITICAL)
        support.pretend_a_worker()
        handler = Handler()
        handler.load_middleware()
        yield furnish(handler=handler)
        transaction.set_rollback(True)
    logging.disable(logging.NOTSET)
    store.connector().close()


def _tiny_model(folder: Path) -> Path:
    """A model whose tokens are bytes; it has no weights."""
    (folder / "tokenizer.json").write_text(tiny_tokenizer()._tokenizer.to_str())
    config = {"chat_template": CHATML, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
