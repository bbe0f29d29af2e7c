"""A rival that needs nothing installed: plain PyTorch on the work file."""

from __future__ import annotations

from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
SIZES = (300, 217, 50)

PROGRAM = f"""
import copy, sys, time
sys.path.insert(0, {str(SCRIPTS / "benchmarks")!r})
sys.modules["fedbench"] = None  # a rival's environment has none
import torch
from rival_work import Answer, load
work = load(sys.argv[1], sys.argv[3])
seconds, steps = [], 0
for cohort in work.cohorts.tolist():
    begin = time.perf_counter()
    total, seen = {{}}, 0
    for client in cohort:
        net = copy.deepcopy(work.net)
        x, y = work.client(client)
        optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
        for _ in range(work.epochs):
            for batch in torch.arange(len(y)).split(work.batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimizer.step()
                steps += 1
        seen += len(y)
        for name, leaf in net.state_dict().items():
            total[name] = total.get(name, 0) + leaf * len(y)
    work.net.load_state_dict({{name: leaf / seen for name, leaf in total.items()}})
    seconds.append(time.perf_counter() - begin)
Answer(seconds, steps, work.accuracy(work.net)).write(sys.argv[2])
"""
