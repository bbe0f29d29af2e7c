"""protocol.cohort, the clients of a round: a count (`5`), a share of all clients (`10%`), or `all`."""

from __future__ import annotations

import re
from fractions import Fraction

from fedbench.config.domain import Domain
from fedbench.core.errors import ConfigError, FedbenchError

ALL = "all"
FORM = re.compile(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,15})?)\s*%")


def parse(text: str) -> int | Fraction:
    """A number of clients, or the share of all clients in (0, 1].

    Raises:
        ConfigError: neither.
    """
    match = FORM.fullmatch("100%" if text == ALL else text)
    if match is None:
        raise ConfigError(f"protocol.cohort is a count (5), a share (10%) or all, got {text}{_meant(text)}")
    count, percent = match.groups()
    size = int(count) if count else Fraction(percent) / 100
    if size == 0 or (percent and size > 1):
        raise ConfigError(f"protocol.cohort={text}: a count of at least 1, or a share above 0% up to 100%")
    return size


class Cohorts(Domain):
    """The field's domain; a number from Python counts as its text."""

    def __init__(self) -> None:
        super().__init__("be a count (5), a share (10%) or all", "a count, a share (10%) or all", self._says)

    def error(self, key: str, value: object) -> FedbenchError:
        """What `parse` raises."""
        try:
            parse(str(value))
        except ConfigError as error:
            return error
        return super().error(key, value)

    def _says(self, value: object) -> bool:
        try:
            parse(str(value))
        except ConfigError:
            return False
        return True


def size(text: str, clients: int) -> int:
    """Clients drawn a round out of `clients` (at least one).

    Raises:
        ConfigError: more than there are.
    """
    wanted = parse(text)
    if isinstance(wanted, Fraction):
        return max(1, round(float(wanted) * clients))
    if wanted > clients:
        raise ConfigError(
            f"protocol.cohort={wanted} is more than the {clients} clients of the partition; add protocol.cohort=all, "
            "or a share: protocol.cohort=10%"
        )
    return wanted


def keyed(text: str) -> float | str:
    """What the key of a run holds: a number that is a share up to 1 and a count above, and a word for one client."""
    wanted = parse(text)
    return "1 client" if isinstance(wanted, int) and wanted == 1 else float(wanted)


def _meant(text: str) -> str:
    """Advice for a bare number such as 0.1, which may be meant as a share."""
    try:
        share = float(text)
    except ValueError:
        return ""
    return f"; if that is a share: protocol.cohort={100 * share:g}%" if 0 < share <= 1 else ""
