"""The ASGI application: event streams by Channels consumers, everything else by Django."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
django.setup(set_prefix=False)

# Views and models can only be imported from here on.
from chatsite.handler import Handler  # noqa: E402
from chatsite.tuning import settle_down  # noqa: E402
from conversations.api import stream_http  # noqa: E402

django_application: Any = Handler()


async def refuse_websocket(scope: Any, receive: Any, send: Any) -> None:
    """There are none here: 403, without the error and the traceback of a protocol that nobody handles."""
    await send({"type": "websocket.close"})


settle_down()
application = ProtocolTypeRouter({"http": stream_http(django_application), "websocket": refuse_websocket})
