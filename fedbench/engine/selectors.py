"""Selectors of leaves in a method's fields, checked against a network: one that finds nothing is a mistake."""

from __future__ import annotations

import dataclasses

from fedbench.config.fields import SELECTS, Selects
from fedbench.core.errors import ConfigError, nearest
from fedbench.engine.method import Method
from fedbench.models.task import Task


def check_selectors(method: Method, task: Task, where: str = "method") -> None:
    """Refuse a method with a selector that finds nothing in the network; of a method inside, too.

    A glob must match a leaf. Groups that the network lacks (@norm, @stats) may be named beside others, or where the
    field says so; alone they would silently make the method another one.

    Raises:
        ConfigError: names the field, and the leaves and groups that there are.
    """
    for field in dataclasses.fields(method):
        value, rule = getattr(method, field.name), field.metadata.get(SELECTS)
        if isinstance(value, Method):
            check_selectors(value, task, f"{where}.{field.name}")
        elif isinstance(rule, Selects) and value:
            _check(f"{where}.{field.name}", value, rule, task)


def _check(key: str, selectors: tuple[str, ...], rule: Selects, task: Task) -> None:
    names = sorted(task.parameters if rule.among == "weights" else task.parameters | task.buffers)
    found = {selector: task.select(names, (selector,)) for selector in selectors}
    globs = [selector for selector in selectors if not selector.startswith("@")]
    groups = [group for group in task.groups if task.select(names, (group,))]
    if lost := next((glob for glob in globs if not found[glob]), None):
        raise ConfigError(
            f"{key}: '{lost}' matches none of the network's {rule.among}; nearest: {nearest(lost, names)}; "
            f"groups: {', '.join(groups)}"
        )
    if not any(found.values()) and not rule.may_be_empty:
        raise ConfigError(
            f"{key}=[{','.join(selectors)}] finds none of the network's {rule.among}; it has {', '.join(groups)}: "
            "choose another model, or other leaves"
        )
