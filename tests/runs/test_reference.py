"""reference=none: no Local is trained, and a run that is asked for its IPR later is compared without training again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.metrics import Floats
from fedbench.runs import execution
from fedbench.runs.config import RunConfig
from fedbench.runs.folder import folder_of
from tests.helpers.runs import config


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_without_local_equals_one_with_it_once_it_is_compared(tmp_path: Path) -> None:
    fast = ["method=ditto", "protocol.rounds=2"]
    whole = execution.execute(config(tmp_path / "whole", *fast))
    alone = execution.execute(config(tmp_path / "alone", *fast, "reference=none"))
    assert alone.row["ipr"] is None
    assert alone.row["local_key"] == ""
    assert alone.row["key"] == whole.row["key"]
    assert not list((tmp_path / "alone").rglob("local"))

    compared = execution.execute(config(tmp_path / "alone", *fast))
    assert compared.earlier, "it is not trained again"
    assert compared.row["local_key"] == whole.row["local_key"]
    for name in ("ipr", "rsd", "score"):
        assert compared.row[name] == pytest.approx(whole.row[name], rel=1e-12)
    for name in ("acc", "acc_local", "gain"):
        assert compared.clients[name].tolist() == pytest.approx(whole.clients[name].tolist(), abs=1e-9)
    assert list(compared.clients) == list(whole.clients)

    again = execution.execute(config(tmp_path / "alone", *fast, "reference=none"))
    assert again.row["ipr"] == compared.row["ipr"], "what was compared stays so"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_another_process_compared_meanwhile_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = ["method=fedavg", "protocol.rounds=1"]
    execution.execute(config(tmp_path, *fast, "reference=none"))
    run, reference = config(tmp_path, *fast), execution.local_reference

    def while_another_compares(asked: RunConfig) -> tuple[Floats | None, str]:
        monkeypatch.setattr(execution, "local_reference", reference)
        execution.compared(asked, folder_of(asked))
        stamps.append(stamp())
        return reference(asked)

    stamps: list[int] = []
    stamp = lambda: (folder_of(run).path / "result.json").stat().st_mtime_ns  # noqa: E731
    monkeypatch.setattr(execution, "local_reference", while_another_compares)
    assert execution.compared(run, folder_of(run))["local_key"]
    assert stamps == [stamp()]
