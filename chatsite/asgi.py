"""The ASGI application: Django behind Channels' protocol router."""

import os

import django
from channels.routing import ProtocolTypeRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
django.setup(set_prefix=False)

# Views and models can only be imported from here on.
from chatsite.handler import Handler  # noqa: E402

application = ProtocolTypeRouter({"http": Handler()})
