"""The conformance suite: what every method promises, checked on toys, also for methods of other packages.

    check_method("ditto")                      # a preset
    check_method("my_package.fedavgm:FedAvgM") # a class; its fields' defaults
    check_method(FedAvgM(momentum=0.9))

On the command line `python -m fedbench check-method ditto`, in pytest:

    @parametrize_with_checks(["my_package.fedavgm:FedAvgM"])
    def test_fedavgm(check):
        check()

A method declares its exceptions in `Method.conformance`.
"""

from __future__ import annotations

import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from fedbench.config.arguments import asks_for_help
from fedbench.config.messages import OK, REFUSED
from fedbench.engine.hooks import HookError
from fedbench.engine.method import Method
from fedbench.testing import checks
from fedbench.testing.toys import Subject

if TYPE_CHECKING:
    import pytest

Check = Callable[[Subject], None]

CHECKS: tuple[Check, ...] = tuple(check for name, check in vars(checks).items() if name.startswith("check_"))
"""All checks; each takes a `Subject` and raises AssertionError."""

ESSENTIAL: tuple[Check, ...] = (checks.check_stacked_equals_looped, checks.check_traffic_is_what_was_sent)
"""The two that a change of settings may break: it takes other branches of the hooks, and sends other leaves."""


def exception_of(check: Check, subject: Subject) -> str:
    """Return the reason why `subject` declares that it fails `check`; empty if it does not."""
    if check is checks.check_relabelled_clients_get_relabelled_models:
        return subject.declared.draws_by_position
    if check is checks.check_a_client_is_sent_the_same_in_whatever_company:
        return subject.declared.sends_by_cohort
    return ""


def run(check: Check, subject: Subject) -> None:
    """Run one check; if `subject` declares an exception, the check must fail.

    Raises:
        AssertionError: with what is wrong.
    """
    reason = exception_of(check, subject)
    if not reason:
        return check(subject)
    try:
        check(subject)
    except AssertionError:
        return None
    raise AssertionError(f"{subject} passes, although it declares an exception: {reason}")


def check_method(method: Method | type[Method] | str, checks: Iterable[Check] = CHECKS) -> None:
    """Run all `checks` on a method, its class, a preset's name or "package.module:Class".

    Raises:
        AssertionError: the first promise that is broken.
        ConfigError, UnknownName: there is no such method.
    """
    subject = Subject.of(method)
    for check in checks:
        run(check, subject)


def parametrize_with_checks(
    methods: Sequence[Method | type[Method] | str], checks: Sequence[Check] = CHECKS
) -> pytest.MarkDecorator:
    """A pytest decorator: the test gets every `check` of every method and calls it.

    The first test of a method builds it and makes its runs; the other tests share them.
    """
    import pytest

    subject = functools.cache(lambda place: Subject.of(methods[place]))

    def bound(place: int, check: Check) -> Callable[[], None]:
        return lambda: run(check, subject(place))

    cases = [
        pytest.param(bound(place, check), id=f"{name_of(method)}-{check.__name__.removeprefix('check_')}")
        for place, method in enumerate(methods)
        for check in checks
    ]
    return pytest.mark.parametrize("check", cases)


def name_of(method: Method | type[Method] | str) -> str:
    """Return the name of a method in results: the preset, the path, or the class."""
    if isinstance(method, str):
        return method
    return (method if isinstance(method, type) else type(method)).__name__


USAGE = "usage: python -m fedbench check-method METHOD...   a preset (ditto) or package.module:Class"


def _outcome(check: Check, subject: Subject) -> str:
    """Return what is wrong, or empty text."""
    try:
        run(check, subject)
    except AssertionError as error:
        return str(error) or "".join(traceback.format_exception(error)[-2:])
    except HookError as error:
        places = traceback.format_tb(error.__cause__.__traceback__) if error.__cause__ else []
        return "\n".join([str(error), *places[-2:]]).rstrip()
    except Exception as error:  # noqa: BLE001  # a hook may raise anything
        return "".join(traceback.format_exception(error)[-4:]).rstrip()
    return ""


def _report(subject: Subject) -> int:
    """Print a line for each check and return how many failed."""
    failed, said = 0, set[str]()
    for check in CHECKS:
        begin = time.perf_counter()
        wrong, declared = _outcome(check, subject), exception_of(check, subject)
        failed += bool(wrong)
        verdict = "FAILS " if wrong else "except" if declared else "holds "
        title = check.__name__.removeprefix("check_").replace("_", " ")
        print(f"{verdict} {title} ({time.perf_counter() - begin:.1f} s)")
        for line in ["as above"] if wrong in said else (wrong or declared).splitlines():
            print(f"         {line}")
        said |= {wrong} if wrong else set()
    print(f"{subject}: {len(CHECKS) - failed} of {len(CHECKS)} checks hold")
    return failed


def check_command(names: Sequence[str]) -> int:
    """Run the conformance suite on methods; return 0 if all checks hold, 1 if one fails, 2 without a method."""
    if not names or names[0].startswith("-"):
        asked = asks_for_help(names)
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return OK if asked else REFUSED
    subjects = [Subject.of(name) for name in names]
    return int(sum(_report(subject) for subject in subjects) > 0)
