"""The ASGI application: event streams by Channels consumers, everything else by Django."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
django.setup(set_prefix=False)

# Views and models can only be imported from here on.
from chatsite.handler import Handler  # noqa: E402
from conversations.api import stream_http  # noqa: E402

django_application: Any = Handler()
application = ProtocolTypeRouter({"http": stream_http(django_application)})
