"""The words behind a command: KEY=VALUE arguments, and whether help is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from fedbench.core.errors import ConfigError


def split_arguments(arguments: Sequence[str], keys: Collection[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the values of `keys`, the other KEY=VALUE arguments, and the words without a "=".

    Raises:
        ConfigError: one of `keys` has no value.
    """
    values, others, words = {}, [], []
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals:
            words.append(text)
        elif key in keys:
            if not value:
                raise ConfigError(f"'{key}=' has no value; give one or leave it out")
            values[key] = value
        else:
            others.append(text)
    return values, others, words


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether a command line holds --help."""
    return bool({"-h", "--help"} & set(arguments))


class CommandParser(argparse.ArgumentParser):
    """Reads a command's words. It takes no shortened option, and its errors have one line."""

    def __init__(self, command: str, **options: Any) -> None:
        super().__init__(prog=f"python -m fedbench {command}", allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(f"{message}; see {self.prog} --help")
