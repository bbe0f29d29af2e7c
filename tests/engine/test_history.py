"""A run's history round by round, its survival of a checkpoint, and the row and the clients' rows made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedbench.engine import checkpoint
from fedbench.engine.history import History, Observer, Observers, Record
from fedbench.runs.progress import over_fewer
from fedbench.runs.run import Reading, client_rows, summarise
from tests.runs.toys import KEY, LABELS, a_history, a_record, tally


class TestHistory:
    def test_rows_by_hand(self):
        row = a_history().rows()[3]
        assert row == {
            "round": 3,
            "acc_on_local": pytest.approx(55.0),
            "acc_on_local_pooled": pytest.approx(700 / 12),
            "acc_on_val": pytest.approx(100 / 6),
            "acc_on_val_pooled": pytest.approx(100 / 7),
            "acc_on_common": pytest.approx(3300 / 90),
            "train_loss": 0.25,
            "bytes_up": 300,
            "bytes_down": 600,
            "seconds_train": pytest.approx(0.3),
            "seconds_evaluate": 0.25,
            "seconds_total": pytest.approx(0.55),
        }

    def test_survives_a_checkpoint_bit_for_bit(self, tmp_path):
        history = a_history()
        odd = {"local": tally([0.1 + 0.2, 0], [0.7, 0])}  # weighted counts, another set of sets, another phase
        history.add(Record(7, odd, 2**40, 2**62, {"prepare": 1e-9}, math.nan))
        tree, meta = history.state()
        assert {leaf.dtype for leaf in tree.values()} == {torch.int64, torch.float64}
        checkpoint.write_checkpoint(tmp_path / "c", {**tree, "server/w": torch.ones(2)}, {"history": meta})
        loaded, found = checkpoint.read_checkpoint(tmp_path / "c")
        restored = History.restore(loaded, found["history"])
        assert repr(restored.rows()) == repr(history.rows())
        for old, new in zip(history.records, restored.records, strict=True):
            assert old.seconds == new.seconds
            assert list(old.tallies) == list(new.tallies)
            for name in old.tallies:
                assert old.tallies[name].correct.tobytes() == new.tallies[name].correct.tobytes()
                assert old.tallies[name].total.tobytes() == new.tallies[name].total.tobytes()
        restored.add(Record(8, odd, 2**40, 2**62, {}))

    def test_an_empty_history_survives(self):
        assert len(History.restore(*History().state())) == 0
        assert [str(leaf.dtype) for leaf in History().state()[0].values()] == ["torch.int64"] * 3 + ["torch.float64"]

    def test_refuses_disorder(self):
        history = a_history()
        with pytest.raises(ValueError, match="after round 3"):
            history.add(a_record(3))
        with pytest.raises(ValueError, match="bytes went down"):
            history.add(Record(9, {"local": tally([1], [2])}, 0, 10**6, {}))
        with pytest.raises(ValueError, match="at least one tally"):
            history.add(Record(9, {}, 10**6, 10**6, {}))

    def test_reports_use_only_rounds_that_scored_the_set(self):
        history = a_history()
        history.add(Record(4, {"global": tally([1, 2], [4, 4])}, 400, 800, {}))
        assert history.test_sets() == ("local", "global", "common")
        assert history.report("local", "last").rounds.tolist() == [[3, 3]]
        assert history.report("global", "last").rounds.tolist() == [[4, 4]]
        assert history.report("local", "best_val").rounds.tolist() == [[2, 2]]

    def test_which_records_have_what(self):
        history = a_history()
        history.add(Record(4, {"local": tally([1, 2], [4, 4])}, 300, 600, {}))
        history.add(Record(5, {"val": tally([1, 2], [4, 4])}, 300, 600, {}))
        assert [record.round for record in history.having("local")] == [0, 1, 2, 3, 4]
        assert [record.round for record in history.having("local", "val")] == [0, 1, 2, 3]
        assert history.report("local", "last").rounds.tolist() == [[4, 4]]
        assert history.report("local", "best_val").rounds.tolist() == [[2, 2]], "of those that have validation scores"
        assert [record.primary() for record in history.records][-2:] == ["local", "val"]
        assert Record(1, {"val": 0, "common": 0, "global": 0}, 0, 0, {}).primary() == "global"
        assert History().test_sets() == ("val",)
        assert history.state()[1]["sets"] == ["local", "val", "common"]


def test_several_observers_are_told_everything_in_order():
    told = []

    class Spy(Observer):
        def __init__(self, who):
            for hook in ("start", "phase", "advance", "record", "recall", "finish", "close"):
                setattr(self, hook, lambda *given, hook=hook: told.append((who, hook, given)))

    calls = {
        "start": (LABELS, 3, 1), "phase": ("train",), "advance": (2,), "record": (a_record(2),), "recall": ({"a": 1},),
        "finish": ({"b": 2},), "close": (),
    }  # fmt: skip
    both = Observers([Spy("first"), Observer(), Spy("second")])
    for hook, given in calls.items():
        getattr(both, hook)(*given)
    assert told == [(who, hook, given) for hook, given in calls.items() for who in ("first", "second")]


class TestSummary:
    def test_by_hand(self):
        local = np.array([0.6, 0.75])
        row = summarise(
            LABELS,
            KEY,
            a_history(),
            Reading("best_test"),
            partition_hash="ph",
            local=local,
            versions={"v": "1"},
        )
        assert (row["method"], row["seed"], row["key"], row["partition_hash"]) == ("fedavg", 3, KEY, "ph")
        assert (row["clients"], row["rounds"], row["test_set"], row["v"]) == (2, 3, "local", "1")
        assert (row["of_clients"], row["clients_on_local"], row["clients_on_val"], row["clients_ipr"]) == (2, 2, 2, 2)
        assert (row["report_first"], row["report_last"]) == (2, 2)
        assert row["acc"] == row["score"] == pytest.approx(90.0)
        assert row["acc_pooled"] == pytest.approx(1000 / 12)
        assert row["ipr"] == 100.0
        assert row["rsd"] == pytest.approx(2.5)  # gains 20 and 25
        assert row["acc_last"] == pytest.approx(55.0)
        assert row["acc_best_test"] == pytest.approx(90.0)
        assert row["acc_best_val"] == pytest.approx(90.0)
        assert row["acc_mean_last_5"] == pytest.approx((50 + 90 + 55) / 3)
        assert row["acc_on_common"] == pytest.approx(3300 / 90)
        assert (row["bytes_up"], row["bytes_down"]) == (300, 600)
        assert row["seconds_total"] == pytest.approx(0.55)

    def test_the_clients_behind_each_mean_are_counted(self):
        """Of four clients three have test samples, two validation samples, and Local scored three others."""
        sets = {"local": tally([6, 1, 2, 0], [10, 2, 4, 0]), "val": tally([1, 1, 0, 0], [2, 2, 0, 0])}
        history, local = History([Record(1, sets, 100, 200, {})]), np.array([0.5, 0.6, np.nan, 0.5])
        row = summarise(LABELS, KEY, history, Reading("last"), partition_hash="", local=local)
        assert row["acc"] == pytest.approx(100 * (0.6 + 0.5 + 0.5) / 3)
        assert (row["clients"], row["of_clients"], row["clients_on_local"]) == (3, 4, 3)
        assert (row["acc_on_val"], row["clients_on_val"]) == (pytest.approx(50), 2)
        assert (row["ipr"], row["clients_ipr"]) == (pytest.approx(50), 2)
        means = {"Acc": "3 of 4 clients", "IPR": "2 of 4 clients", "val": "2 of 4 clients"}
        assert over_fewer([row]) == over_fewer([{**row, "clients": 4}, row]) == means
        assert over_fewer([{**row, "clients": 4, "clients_ipr": None, "clients_on_val": 4}]) == {}

    def test_a_tie_is_no_gain_in_the_file_either(self):
        """39 / 45 and 26 / 30 are one number, whose floats may differ."""
        history = History([Record(1, {"local": tally([39, 9, 8], [45, 10, 10])}, 0, 0, {})])
        local = np.nextafter([26 / 30, 0.9, 0.7], 0)
        gains = [row["gain"] for row in client_rows(history, Reading("last"), sizes={}, local=local)]
        assert gains == [0, 0, pytest.approx(10)]
        row = summarise(LABELS, KEY, history, Reading("last"), partition_hash="", local=local)
        assert row["ipr"] == pytest.approx(100 * np.mean(np.array(gains) > 0))

    def test_a_kind_without_a_test_sample_has_no_accuracy(self):
        history = History([a_record(0), Record(1, {"local": tally([6, 0], [10, 0])}, 100, 200, {})])
        row = summarise(LABELS, KEY, history, Reading("last"), partition_hash="", modalities=["image", "text"])
        assert row["acc"] == row["acc_of_image"] == pytest.approx(60.0)
        assert math.isnan(row["acc_of_text"])

    def test_pooled_protocol_scores_pooled(self):
        row = summarise(LABELS, KEY, a_history(), Reading("last", "pooled"), partition_hash="")
        assert row["score"] == row["acc_pooled"] == pytest.approx(700 / 12)
        assert math.isnan(row["ipr"])
        assert math.isnan(row["rsd"])

    def test_per_client_best_validation(self):
        # client 0 is best on validation data at round 2, client 1 first at round 1
        row = summarise(LABELS, KEY, a_history(), Reading("best_val", per_client=True), partition_hash="")
        assert (row["report_first"], row["report_last"]) == (1, 2)
        assert row["acc"] == pytest.approx((80 + 50) / 2)
        assert row["acc_on_common"] == pytest.approx(3200 / 90)  # mean validation accuracy is best at round 2
        rounds = [row["round"] for row in client_rows(a_history(), Reading("best_val", per_client=True), sizes={})]
        assert rounds == [2, 1]

    def test_client_rows(self):
        rows = client_rows(
            a_history(),
            Reading("last"),
            sizes={"train": [40, 8], "test": [10, 2]},
            local=np.array([0.5, 0.5]),
        )
        assert rows[0] == {
            "client": 0,
            "size_train": 40,
            "size_test": 10,
            "round": 3,
            "acc": 60.0,
            "acc_local": 50.0,
            "gain": pytest.approx(10.0),
        }
        assert rows[1]["gain"] == 0.0
        alone = client_rows(a_history(), Reading("last"), sizes={})
        assert math.isnan(alone[0]["gain"])
