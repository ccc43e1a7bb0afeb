"""What goes wrong with a server, as sentences."""

from __future__ import annotations


class ServerError(Exception):
    """A server did not do what it was asked; the message is a sentence for people.

    `may_retry`: the same request may be made again, nothing of an answer has come. `lasts`: it will be no
    better at the next key (a wrong key, no such model, nobody there), so there is no point in asking.
    `after_s`: the server said when to ask again.
    """

    def __init__(
        self, text: str, *, may_retry: bool = False, lasts: bool = False, after_s: float = 0.0
    ) -> None:
        super().__init__(text)
        self.may_retry = may_retry
        self.lasts = lasts
        self.after_s = after_s


class Refused(ServerError):
    """The server does not take a request as it is (a field, a value); others it may take."""
