"""The words behind a command: KEY=VALUE arguments, and whether help is asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
