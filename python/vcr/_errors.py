"""Exceptions: what failed, where, and what to do."""

from __future__ import annotations

import re

# The name that a message calls so, else the first that it quotes, or the first option.
_CALLED = re.compile(r"\b(?:option|parameter|field|key|argument|metric|plugin|grid:) `([A-Za-z_][\w.-]*)`")
_FIELD = re.compile(r"`([A-Za-z_][\w.-]*)`|(--[a-z][a-z0-9-]*)")


class VcrWarning(UserWarning):
    """A warning of the command."""


class VcrError(Exception):
    """A run that did not come to its end.

    Attributes:
        message: What failed and where, as the command prints it.
        hint: What to do, if known.
        file: Name of the script or file, if the error is about one.
        line: Line in it, from 1.
        column: Column in that line, from 1.
        field: The option or field that is wrong, as far as the message names one.
        exit_code: The command's exit code for this error.
    """

    exit_code: int

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, hint, file, line, column)
        self.message = message
        self.hint = hint
        self.file = file
        self.line = line
        self.column = column
        #: Where in a Python file the value was made, for scenarios built with ``vcr.Scenario``.
        self.caller: tuple[str, int] | None = None

    @property
    def field(self) -> str | None:
        found = _CALLED.search(self.message) or _FIELD.search(self.message)
        return next(filter(None, found.groups())) if found else None

    def __str__(self) -> str:
        text = self.message
        if self.caller:
            text += f"\nmade at {self.caller[0]}:{self.caller[1]}"
        return f"{text}\n\nhint: {self.hint}" if self.hint else text


class InputError(VcrError, ValueError):
    """A scenario, a file or an argument is wrong."""

    exit_code = 2


class FaultError(VcrError, RuntimeError):
    """A guest, a plugin or an engine failed while it ran."""

    exit_code = 3
