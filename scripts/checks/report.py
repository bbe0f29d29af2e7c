"""The report of `gpu_check.py`, from what its parts wrote: needs nothing but Python."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from checks.record import Lines

Line = dict[str, Any]
TOYS = ("mlp", "batch_norm", "two kinds")  # on which methods are compared; on any other model, networks are


def write(out: Path, ended: dict[str, Any], minutes: float) -> bool:
    """Write report.json and report.md; returns whether anything is wrong."""
    file = out / "machine.json"
    about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    engines, cells = (Lines(out / f"{name}.jsonl").read() for name in ("engines", "tables"))
    summary = compared(engines)
    failed = {
        part: each for part, each in ended.items() if each["code"] and not each["why"].startswith("deadline")
    }
    lacking = sorted({line["preset"] for line in engines if "lacking" in line})
    content = {
        "machine": about,
        "minutes": minutes,
        "parts": ended,
        "engines": summary,
        "left_out": lacking,
        "tables": cells,
    }
    (out / "report.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    lines = [
        f"# fedbench on {about.get('device', 'an unknown device')}",
        "",
        _circumstances(about, minutes),
        "",
        *(f"- {part}: {each['seconds']} s, {each['why']}" for part, each in ended.items()),
        *(f"- {name} is missing, so left out: {what}" for name, what in about.get("lacking", {}).items()),
        "",
        "## Engines",
        "",
        *_engines(summary, lacking),
        "",
        "## Tables",
        "",
        *_cells(cells),
        "",
        "## Benchmark",
        "",
        *(each.read_text(encoding="utf-8") for each in sorted((out / "bench").glob("*.md"))),
    ]
    (out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(failed or any(each["wrong"] for each in summary))


def compared(lines: list[Line]) -> list[Line]:
    """A row for each (dtype, toy, engine): how many presets agree, the largest difference, what does not."""
    groups: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in [line for line in lines if "lacking" not in line]:
        kind = line["model"] if line["model"] in TOYS else "networks"
        groups[line["dtype"], kind, line["engine"]].append(line)
    rows = []
    for (dtype, kind, engine), found in groups.items():
        gaps = {_name(each): each["gap"] for each in found if "gap" in each}
        wrong = {
            _name(each): f"differs by {each['gap']:.1g}" for each in found if each.get("agrees") is False
        }
        wrong |= {_name(each): each["error"] for each in found if "error" in each}
        largest = max(gaps, key=lambda name: gaps[name], default="")
        rows.append(
            {
                "dtype": dtype,
                "toy": kind,
                "engine": engine,
                "compared": len(found),
                "largest": gaps.get(largest),
                "of": largest,
                "seconds": round(sum(each.get("seconds", 0.0) for each in found), 1),
                "wrong": wrong,
            }
        )
    return rows


def _name(line: Line) -> str:
    return line["preset"] if line["model"] in TOYS else line["model"]


def _engines(summary: list[Line], lacking: list[str]) -> list[str]:
    if not summary and not lacking:
        return ["Not run."]
    lines = [
        "Largest difference of anything that a run leaves behind from the CPU's plain loop (float64: at most 1e-6).",
        "",
        "| numbers | toy | engine | compared | largest difference | of | seconds | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in summary:
        largest = "-" if row["largest"] is None else f"{row['largest']:.1e}"
        cells = (row["dtype"], row["toy"], row["engine"], row["compared"], largest, row["of"], row["seconds"])
        lines.append("| " + " | ".join(map(str, (*cells, len(row["wrong"])))) + " |")
    wrong = [
        f"- {row['dtype']}, {row['toy']}, {row['engine']}, {name}: {why}"
        for row in summary
        for name, why in row["wrong"].items()
    ]
    left_out = [f"- left out, as a package is missing: {', '.join(lacking)}"] if lacking else []
    return [*lines, "", *wrong, *left_out]


def _cells(lines: list[Line]) -> list[str]:
    rows = [line for line in lines if "row" in line]
    if not rows:
        return ["Not run."]
    found = [
        "| table | row | scale | seconds, all seeds | ours | published |",
        "|---|---|---|---|---|---|",
    ]
    for line in rows:
        measured = {name: each for name, each in line.items() if isinstance(each, dict)}
        ours = ", ".join(
            f"{name} {each['mean']:.2f}" for name, each in measured.items() if each["mean"] == each["mean"]
        )
        theirs = ", ".join(
            f"{name} {each['published']}" for name, each in measured.items() if each["published"]
        )
        shown = ours or line.get("error", "")
        found.append(
            f"| {line['table']} | {line['row']} | {line['scale']} | {line.get('seconds', '-')} | {shown} | {theirs} |"
        )
    stopped = [f"The last row was stopped: {line['stopped']}" for line in lines if "stopped" in line]
    return [*found, *(["", *stopped] if stopped else [])]


def _circumstances(about: Line, minutes: float) -> str:
    versions = ", ".join(
        f"{name} {about.get(key) or '-'}"
        for name, key in (
            ("torch", "version_torch"),
            ("CUDA", "cuda"),
            ("cuDNN", "cudnn"),
            ("Python", "version_python"),
        )
    )
    where = f"{about.get('machine', '')}; {versions}; {about.get('system', '')}"
    return f"{where}; commit {about.get('commit') or _bundled()}; {minutes:g} minutes."


def _bundled() -> str:
    """The commit that a bundle was made from."""
    file = Path(__file__).resolve().parents[2] / "bundle.json"
    return json.loads(file.read_text(encoding="utf-8"))["commit"] if file.exists() else "unknown"
