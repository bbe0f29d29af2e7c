"""Made-up arrays of every figure."""

from __future__ import annotations

from typing import Any

import numpy as np

R = np.random.default_rng(0)
T = np.arange(0, 40, 4)
SIMPLEX = R.dirichlet(np.ones(3), 300)


def grid(rows: list[str], columns: list[str], **more: Any) -> dict[str, Any]:
    return {"rows": np.array(rows), "columns": np.array(columns), "seeds": np.arange(3), **more}


def counts(clients: int, classes: int = 10) -> np.ndarray:
    return R.integers(1, 50, (clients, classes))


def square(*shape: int) -> np.ndarray:
    return R.random((*shape, shape[-1]))


def sensitivity(values: list[str]) -> dict[str, Any]:
    names = ["homogeneous", "Dirichlet 0.5", "Dirichlet 0.1", "pathological"]
    return grid([*values, "FedAvg", "Local"], names, **{"score/score": 80 + R.random((len(values) + 2, 4, 3))})


def curves(rows: list[str], columns: list[str], *names: str) -> dict[str, Any]:
    shape = (len(rows), len(columns), 3, len(T))
    return grid(rows, columns, round=T, **{f"curve/{name}": 50 + 9 * R.random(shape) for name in names})


def clusters() -> dict[str, Any]:
    return {
        "array/positions/0/0": SIMPLEX[None, :12],
        "array/cluster/0/0": (np.arange(12) % 3)[None],
        "array/centers/0/0": np.array([[[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]]),
        "counts/0/0": counts(12),
    }


REMA = ["Local", "FedAvg", "FedPer", "FedPAC", "FedReMa"]
SOSIC = ["FedAvg", "FedProx", "SosicFL"]
C = ["0", "1", "4", "6", "8", "10", "1000"]
TWO = ["s=1", "s=0.5", "s=0", "n=12", "n=60", "n=120"]
VARIANCE = "array/record/update_variance"
MADE: dict[str, dict[str, Any]] = {
    "fedsac_f1": grid(
        ["alone", "together"], TWO[:3], **{"score/score": R.random((2, 3, 3))},
        **{f"array/record/model_cosine/value/1/{c}": square(3, 1, 2) for c in range(3)},
        **{f"counts/0/{c}": counts(2) for c in range(3)},
    ),
    "fedsac_f3": grid(
        ["similarity", "balanced", "complementarity"], ["-"], **{"counts/0/0": counts(6)},
        **{f"array/record/{n}/value/{r}/0": square(1, 1, 6)
           for n in ("update_cosine", "complementarity", "collaboration") for r in range(3)},
    ),
    "fedsac_f4": grid(["-"], list("abcd"), **{f"counts/0/{c}": counts(3) for c in range(4)}),
    "fedsac_f5": sensitivity(["0.6", "0.9", "1.2"]),
    "fedsac_f6": sensitivity(["0.2", "1.4"]),
    "fedsac_f7": curves(["Local", "FedAvg", "FedSaC"], ["-"], "acc_on_global"),
    "pfedsim_f1": grid(["-"], ["-"], **{"array/record/cka/value/0/0": square(1, 1, 5, 4)}),
    "pfedsim_f2": grid(["-"], ["-"], **{"array/record/classifier_cosine/value/0/0": square(3, 1, 10, 4)}),
    "pfedsim_f3": grid(["-"], ["Dir(0.1)", "Dir(0.5)"], **{f"counts/0/{c}": counts(9) for c in range(2)}),
    "pfedsim_f5": grid(["-"], ["-"], images=R.random((4, 8, 8, 1)), domains=np.array(list("abcd"))),
    "sosicfl_f2": grid(["-"], ["-"], **clusters()),
    "sosicfl_f3": grid(["-"], ["-"], **clusters(), draws=R.dirichlet(np.ones(3), (3, 50)), radius=np.array(0.4)),
    "sosicfl_f4": curves(SOSIC, ["-"], "acc_on_common", "acc_on_local"),
    "sosicfl_f5": grid(
        ["-"], ["-"], **clusters(),
        **{f"array/record/simplex/{part}/0/0": value[None, None] for part, value in
           (("points", SIMPLEX), ("global", R.random(300)), ("local", R.random((300, 12))))},
    ),
    "sosicfl_f6": grid(
        SOSIC, ["-"], **{f"{VARIANCE}/value/{r}/0": 1 + R.random((3, 40)) for r in range(3)},
        **{f"{VARIANCE}/round/0/0": np.arange(1, 41)[None]},
    ),
    "sosicfl_f7": grid(
        ["C=5", "C=10", "FedAvg", "FedProx"], ["0.1", "0.4"], **{"score/acc_on_local": R.random((4, 2, 3))}
    ),
    "sosicfl_f8": curves(["FedAvg", "start at 0", "never (500)"], ["-"], "acc_on_local"),
    "sosicfl_f9": curves([*SOSIC, "SosicFL-All"], ["-"], "acc_on_common", "acc_on_local"),
    "fedrema_f1": grid(REMA, ["10", "60"], **{"score/score": R.random((5, 2, 3))}),
    "fedrema_f3": grid(
        ["-"], ["-"], **{"array/record/similarity/value/0/0": square(1, 4, 20)},
        **{"array/record/similarity/round/0/0": np.array([[1, 10, 20, 30]])},
    ),
    "fedrema_f4": curves(REMA, list("abcd"), "acc_on_local_pooled"),
    "fedcollab_f1": grid(
        ["local", "global"], TWO, **{"score/score": R.random((2, 6, 3))},
        **{f"counts/0/{c}": counts(2) for c in range(6)},
    ),
    "fedcollab_f3": grid(["-"], ["-"], **{"counts/0/0": counts(20)}),
    "fedcollab_f4": grid(["-"], ["-"], label_map=np.stack([np.roll(np.arange(20), k // 5) for k in range(20)])),
    "fedcollab_f5": grid(
        ["FedCollab", "FeSEM", "KMeans", "FedCluster, eps1 10"], ["-"],
        **{f"array/distances/{r}/0": square(1, 20) for r in range(4)}, authors=square(20),
    ),
    "fedcollab_f6": grid(
        C, ["-"], **{"score/acc": R.random((7, 1, 3))},
        **{f"array/coalition/{r}/0": R.integers(0, 4, (3, 20)) for r in range(7)},
    ),
    "fedcollab_f7": grid(
        ["joins", "Local"], ["-"], round=T, join_round=np.array(20),
        **{"clients/acc_on_local": R.random((2, 1, 3, len(T), 20))},
    ),
    "fedcollab_f8": grid(
        ["-"], ["-"], values=np.sort(R.random((9, 60)))[:, ::-1], iterations=R.integers(40, 80, 9),
        clients=np.array(20),
    ),
}  # fmt: skip
