"""Line and bar charts as inline SVG; colours come from the page's CSS variables."""

import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 34


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover the range."""
    span = high - low
    if not span > 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / count))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= count:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _frame(title: str, body: str, x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]], x_name: str) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>'
        for y, label in y_ticks
    )
    axis = "".join(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>' for x, label in x_ticks)
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">{grid}{axis}'
        f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="tick" x="{(right + _LEFT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{x_name}</text>'
        f"{body}</svg></figure>"
    )


def line_chart(title: str, xs: Sequence[float], ys: Sequence[float], color: str, mark: float | None = None, log: bool = False) -> str:
    """One curve over the epochs; ``mark`` draws a vertical line (the kept encoder); NaN values are left out."""
    points = [(x, math.log10(y) if log else y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y) and (y > 0 or not log)]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = 0.06 * (high - low) or max(abs(high), 1e-3) * 0.1
    low, high = low - pad, high + pad

    def at_x(x: float) -> float:
        return _LEFT + (x - left) / max(right - left, 1e-9) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="7" class="hit"><title>epoch {x:g}: {10**y if log else y:.4g}</title></circle>'
        for x, y in points
    )
    line = ""
    if mark is not None and left <= mark <= right:
        line = (
            f'<line class="mark" x1="{at_x(mark):.1f}" x2="{at_x(mark):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
            f"<title>kept encoder: after epoch {mark:g}</title></line>"
        )
    body = f'{line}<polyline points="{path}" style="stroke:var({color})" class="curve"/>{dots}'
    x_ticks = [(at_x(t), f"{t:g}") for t in _ticks(left, right, 6) if t == int(t)]
    y_ticks = [(at_y(t), f"{10**t if log else t:.3g}") for t in _ticks(low, high)]
    return _frame(title, body, x_ticks, y_ticks, "epoch")


def bar_chart(title: str, values: Sequence[float], color: str, x_name: str) -> str:
    """Bars in the order given."""
    if not values:
        return ""
    top = max(*values, 1)
    width = (_WIDTH - _LEFT - _RIGHT) / len(values)
    height = _HEIGHT - _TOP - _BOTTOM
    gap = min(2.0, 0.15 * width)
    bars = "".join(
        f'<rect x="{_LEFT + i * width + gap / 2:.1f}" width="{width - gap:.1f}" y="{_HEIGHT - _BOTTOM - v / top * height:.1f}" '
        f'height="{v / top * height:.1f}" style="fill:var({color})"><title>#{i + 1}: {v:g}</title></rect>'
        for i, v in enumerate(values)
    )
    y_ticks = [(_HEIGHT - _BOTTOM - t / top * height, f"{t:g}") for t in _ticks(0, top)]
    ends = [(_LEFT + width / 2, "1"), (_WIDTH - _RIGHT - width / 2, str(len(values)))]
    return _frame(title, bars, ends if len(values) > 1 else ends[:1], y_ticks, x_name)
