"""FedCollab's tables have its authors' settings where the paper is silent."""

from __future__ import annotations

import pytest

from fedbench.config.compose import compose
from fedbench.runs.config import resolve
from fedbench.tables import spec
from tests.tables.cells import config


@pytest.mark.parametrize(("column", "rate"), [("Label shift", 0.1), ("Feature shift", 0.01), ("Concept shift", 0.001)])
def test_rates_of_perfedavg_and_pfedme(column: str, rate: float) -> None:
    run = config("fedcollab_t1", "Per-FedAvg", column)
    assert (run.method.alpha, run.method.beta, run.protocol.optimizer.lr) == (rate, None, rate)
    assert config("fedcollab_t1", "Per-FedAvg+FedCollab", column).method.base.alpha == rate
    alone = config("fedcollab_t1", "pFedMe", column).method
    for method in (alone, config("fedcollab_t1", "pFedMe+FedCollab", column).method.base):
        found = (method.lam, method.inner_steps, method.personal_lr, method.lr, method.beta)
        assert found == (1.0, 5, 0.1, None, 1.0)
        assert (method.restart, method.uniform) == (True, False)


def test_rotated_images_are_mirrored_at_their_borders() -> None:
    for table, row in (("fedcollab_t1", "Local"), ("fedcollab_t2", "FedCollab")):
        assert config(table, row, "Feature shift").partition.corners == "reflect"


def test_the_code_preset_normalises_and_takes_the_best_check() -> None:
    code = resolve(compose(["method=fedcollab_code"])).method
    found = (code.inputs, code.discriminator.report, code.discriminator.rounds, code.discriminator.patience)
    assert found == ("normalised", "best", 2000, 10)


def test_rows_count_on_the_authors_partition_whatever_the_inputs() -> None:
    for table in map(spec.load, ("fedcollab_t1", "fedcollab_t2", "fedcollab_t3")):
        marked = {row.label: row for row in table.rows if row.exploratory}
        assert {"FedAvg+FedCollab", "FedCollab"} & set(marked)
        always = {name for name, row in marked.items() if not row.exploratory_but}
        assert always <= {"FeSEM", "FedCluster", "Ignore quantities"}
        assert all(row.exploratory_but[0] in table.left_open for row in marked.values() if row.exploratory_but)
