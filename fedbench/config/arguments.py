"""The words behind a command: KEY=VALUE arguments, and whether help is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from fedbench.core.errors import ConfigError


def split_arguments(arguments: Sequence[str], keys: Collection[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the values of `keys`, the other KEY=VALUE arguments, and the words without a "="."""
    values, others, words = {}, [], []
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals:
            words.append(text)
        elif key in keys:
            values[key] = value
        else:
            others.append(text)
    return values, others, words


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether a command line holds --help."""
    return bool({"-h", "--help"} & set(arguments))


def parser_of(command: str, **options: Any) -> argparse.ArgumentParser:
    """Return a parser of a command's words, which takes no shortened option and raises ConfigError, in one line."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; see python -m fedbench {command} --help")

    parser = argparse.ArgumentParser(prog=f"python -m fedbench {command}", allow_abbrev=False, **options)
    parser.error = refuse  # type: ignore[method-assign]
    return parser
