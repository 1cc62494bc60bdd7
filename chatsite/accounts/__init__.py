"""Who uses the service: users, API keys, and how a request proves whose it is."""
