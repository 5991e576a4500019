"""The plot of returns against time, and their table, with 95 % intervals over runs."""

from __future__ import annotations

import statistics
from pathlib import Path

Curves = dict[str, list[list[float | None]]]

# Student's t for 95 % and so many degrees of freedom.
T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 960, 480, 70, 90, 20, 50
MOST = 500


def interval(values: list[float]) -> tuple[float, float]:
    """The mean and half of its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, T.get(len(values) - 1, 2.0) * statistics.stdev(values) / len(values) ** 0.5


def _filled(run: list[float | None]) -> list[float]:
    """A second without the end of an episode has the return of the one before."""
    filled, last = [], 0.0
    for value in run:
        last = last if value is None else value
        filled.append(last)
    return filled


def table(curves: Curves) -> str:
    """For each bound: the mean return over all of the time, over the last quarter, and the seconds until 400."""
    lines = ["| bound | mean return, whole run | last quarter | seconds until 400 | runs that got there |"]
    lines.append("| - | - | - | - | - |")
    for name, runs in curves.items():
        filled = [_filled(run) for run in runs]
        whole = interval([statistics.fmean(run) for run in filled])
        last = interval([statistics.fmean(run[-max(1, len(run) // 4) :]) for run in filled])
        reached = [next((second + 1.0 for second, value in enumerate(run) if value >= 400), None) for run in filled]
        there = [second for second in reached if second is not None]
        until = f"{interval(there)[0]:.1f} ± {interval(there)[1]:.1f}" if there else "-"
        means = [f"{mean:.0f} ± {half:.0f}" for mean, half in (whole, last)]
        lines.append("| " + " | ".join([name, *means, until, f"{len(there)} of {len(runs)}"]) + " |")
    return "\n".join(lines)


def write(path: str, curves: Curves) -> None:
    """Writes an SVG: a line for each bound, and its interval as a shade."""
    seconds = max(len(run) for runs in curves.values() for run in runs)

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / seconds

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0), MOST) / MOST)

    def text(left: float, top: float, words: str, size: int = 14, anchor: str = "start") -> str:
        where = f'x="{left:.1f}" y="{top:.1f}" font-size="{size}" text-anchor="{anchor}"'
        return f'<text {where} font-family="sans-serif" fill="#222222">{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#FFFFFF"/>',
        text(LEFT, 26, "Actor-critic on CartPole: return by the bound on the weights' staleness", 18),
        text(LEFT, 46, "mean of the episodes that end in each second; shades are 95 % intervals over runs", 13),
        text(WIDTH / 2, HEIGHT - 12, "seconds", anchor="middle"),
    ]
    for value in range(0, MOST + 1, 100):
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#DDDDDD"/>')
        parts.append(text(LEFT - 8, y(value) + 5, str(value), anchor="end"))
    for second in range(0, seconds + 1, 5):
        parts.append(text(x(second), HEIGHT - BOTTOM + 20, str(second), anchor="middle"))
    lines = []
    for index, (name, runs) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [interval(list(values)) for values in zip(*map(_filled, runs), strict=True)]
        upper = [f"{x(second + 0.5):.1f},{y(mean + half):.1f}" for second, (mean, half) in enumerate(points)]
        lower = [f"{x(second + 0.5):.1f},{y(mean - half):.1f}" for second, (mean, half) in enumerate(points)]
        middle = [f"{x(second + 0.5):.1f},{y(mean):.1f}" for second, (mean, _) in enumerate(points)]
        parts.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity="0.12"/>')
        lines.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        left = LEFT + 140 * index
        lines.append(f'<path d="M{left} 68h24" stroke="{colour}" stroke-width="3"/>')
        lines.append(text(left + 30, 73, name if name == "mixture" else f"at most {name}"))
    Path(path).write_text("\n".join([*parts, *lines, "</svg>"]) + "\n", encoding="utf-8")
