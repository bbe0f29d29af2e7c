"""`python -m fedbench figure NAME ...`: run what figures lack, and draw them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.cli import command, making
from fedbench.core.errors import ConfigError, FedbenchError

if TYPE_CHECKING:
    from fedbench.figures.plan import FigurePlan, Wanted

HELP = """\
usage: python -m fedbench figure NAME [NAME ...] [KEY=VALUE ...] [--dry-run]

  NAME                 fedsac_f1, say, or all; `python -m fedbench list figures` lists them
  scale=paper          paper | open | quick: the paper's setting, data that anyone has, or minutes on digits; where the
                       paper's data are not here, paper draws the open setting and says so
  seeds=5              that many, or a list: seeds=[0,3]
  jobs=N               runs at once (default: one a core, on a GPU one)
  results=results      the figures go to DIR/figures/SCALE/; the runs themselves go to runs_dir
  dry_run=false        true, or --dry-run: show what is to be run and stop
  render=false         true: draw again from the arrays that are kept, look at no run
  formats=svg,png      also pdf

Everything else is an override of every run, and said in the caption: protocol.rounds=5 hardware=cpu runs_dir=DIR.
The same command again runs only what is missing.
"""


@dataclass(frozen=True)
class Request:
    """What the command line asks for, but for the overrides of the runs."""

    names: tuple[str, ...]
    scale: str = "paper"
    seeds: tuple[int, ...] = ()
    jobs: int = 0
    results: str = "results"
    dry_run: bool = False
    render: bool = False
    formats: tuple[str, ...] = ("svg", "png")

    @property
    def folder(self) -> Path:
        """Where figures are kept."""
        return Path(self.results) / "figures"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, run and draw figures; returns the exit code (1: one could not be made)."""
    return command.run("python -m fedbench figure", arguments, _main)


def _main(arguments: Sequence[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else 2
    request, overrides = read(arguments)
    return _render(request) if request.render else _make(request, overrides)


def read(arguments: Sequence[str]) -> tuple[Request, list[str]]:
    """(the request, overrides of the runs and of Hydra) of a command line.

    Raises:
        ConfigError: no name, a value of the wrong type, or an override that no plan takes.
        UnknownName: no such figure.
    """
    import dataclasses

    from fedbench.config.fields import typed
    from fedbench.figures import plan

    given = ["dry_run=true" if text == "--dry-run" else text for text in arguments]
    names = [text for text in given if "=" not in text]
    own = {f.name for f in dataclasses.fields(Request)} - {"names"}
    values: dict[str, Any] = {}
    overrides = []
    for text in given:
        key, equals, value = text.partition("=")
        if equals and key not in own:
            overrides.append(making.of_every_run(text))
        elif key == "formats":
            values[key] = value.split(",")
        elif equals:
            values[key] = making.value(text, value)
    if not names:
        raise ConfigError(
            "which figure? a name such as fedsac_f1, or all; see python -m fedbench figure --help"
        )
    if "seeds" in values:
        values["seeds"] = making.seeds(values["seeds"])
    specs = plan.ordered_specs() if "all" in names else [plan.load_spec(name) for name in names]
    return typed(Request, {**values, "names": [spec.name for spec in specs]}, "the command line"), overrides


def _make(request: Request, overrides: Sequence[str]) -> int:
    from fedbench.figures import plan, store

    launcher, at_once = making.launcher(request.jobs, overrides)
    wanted = _wanted(request, overrides)
    plans, refused = _plans(request, wanted)
    begun = time.monotonic()
    missing = plan.merged([job for each in plans for job in each.missing()])
    print(f"{len(plans)} figures, {len(missing)} runs to make, {at_once} at once")
    if request.dry_run:
        return 0
    if missing:
        making.run(missing, launcher)
    failed = sum(not _draw(each, request, wanted) for each in plans)
    store.write_overview(request.folder)
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes; all figures: {request.folder / 'README.md'}")
    return 1 if failed or refused else 0


def _wanted(request: Request, overrides: Sequence[str]) -> Wanted:
    from fedbench.figures.plan import Wanted

    mine = [text for text in overrides if not text.lstrip("+~").startswith("hydra")]
    settings = tuple(text for text in mine if making.is_setting(text))
    changed = tuple(text for text in mine if not making.is_setting(text))
    return Wanted(request.scale, request.seeds, changed, ("progress=none", *settings))


def _plans(request: Request, wanted: Wanted) -> tuple[list[FigurePlan], int]:
    """The plans of the figures, and how many could not be planned; one alone that cannot is an error."""
    from fedbench.figures import plan

    found = []
    for name in request.names:
        try:
            found.append(plan.make_plan(plan.load_spec(name), wanted))
        except FedbenchError as error:
            if len(request.names) == 1:
                raise
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if reason := found[-1].substituted:
            print(f"{name}: {reason}; drawn at scale={found[-1].scale} instead")
    return found, len(request.names) - len(found)


def _draw(each: FigurePlan, request: Request, wanted: Wanted) -> bool:
    """Draw a figure whose runs are there; else say why not."""
    from fedbench.figures import arrays, plan, store

    again = plan.make_plan(each.spec, wanted)  # what was missing is there now
    if lacking := again.missing():
        job = lacking[0]
        reason = job.failure or f"not finished; {again.command()} goes on"
        line = f"{each.spec.name}: {len(lacking)} runs lack: {' '.join(job.overrides)}: {reason}"
        print(line, file=sys.stderr)
        return False
    drawn = store.save_figure(request.folder, again, arrays.collect(again), request.formats)
    print(f"{drawn.mirrors} ({drawn.scale}): {request.folder / drawn.scale / drawn.name}")
    return True


def _render(request: Request) -> int:
    """Draw again from what is kept."""
    from fedbench.figures import store

    places = {name: store.place_of(request.folder, name) for name in request.names}
    if lacking := [name for name, place in places.items() if place is None]:
        how = f"python -m fedbench figure {' '.join(lacking)} scale=quick makes them"
        print(f"not made below {request.folder}: {', '.join(lacking)}; {how}", file=sys.stderr)
    for place in filter(None, places.values()):
        print(store.redraw(place, request.formats).mirrors)
    store.write_overview(request.folder)
    return 1 if lacking else 0
