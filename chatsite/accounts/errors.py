"""What can go wrong with an account, one class per cause."""


class AccountsError(Exception):
    """Base of every error of this app."""


class InvalidApiKey(AccountsError):
    """The key is unknown, malformed or revoked, or its user is not active."""


class EmailTaken(AccountsError):
    """An account with this e-mail exists."""

    def __init__(self, *, email: str) -> None:
        super().__init__(f"An account with the e-mail {email} already exists.")
        self.email = email
