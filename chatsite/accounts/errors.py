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


class RegistrationClosed(AccountsError):
    """Nobody may open an account at the moment."""

    def __init__(self) -> None:
        super().__init__("New accounts are not being opened here.")


class InvitationInvalid(AccountsError):
    """There is no invitation, or it is unknown, used, expired, or for another address: which one is not told."""

    def __init__(self) -> None:
        super().__init__("A valid invitation is needed to open an account here. Each works once and expires.")


class LinkInvalid(AccountsError):
    """A link from a mail was used, has expired or was made up: which one is not told."""


class LastAdministrator(AccountsError):
    """The instance would be left without anybody who can administer it."""

    def __init__(self) -> None:
        super().__init__("You are the last administrator: make somebody else one first.")
