"""The one error of the audit: a log that cannot be read, said in one line."""

from __future__ import annotations


class BadLog(ValueError):
    """A file the audit cannot read; the message is one line: where, the rule, what was got, what to do."""


class NoLog(BadLog):
    """A file that is no log at all; in a folder it is passed over, by name it is an error."""


def one_line(text: object, /, *, limit: int = 160) -> str:
    """Shorten foreign text to one printable line, so that a hostile log cannot forge output."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text)[: 4 * limit])
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
