"""`python -m fedbench check-method METHOD...`: every check on a preset or a class ("package.module:Class")."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence

from fedbench.config.messages import OK, REFUSED
from fedbench.engine.hooks import HookError
from fedbench.testing import CHECKS, Check, exception_of, run
from fedbench.testing.toys import Subject

USAGE = "usage: python -m fedbench check-method METHOD...   a preset (ditto) or package.module:Class"


def outcome(check: Check, subject: Subject) -> str:
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


def report(subject: Subject) -> int:
    """Print a line for each check and return how many failed."""
    failed, said = 0, set[str]()
    for check in CHECKS:
        begin = time.perf_counter()
        wrong, declared = outcome(check, subject), exception_of(check, subject)
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
        asked = bool({"-h", "--help"} & set(names))
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return OK if asked else REFUSED
    subjects = [Subject.of(name) for name in names]
    return int(sum(report(subject) for subject in subjects) > 0)
