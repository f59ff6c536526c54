# SPDX-License-Identifier: Apache-2.0
"""Small line charts as SVG, side by side."""

import dataclasses
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP, MARGIN_BOTTOM = 380, 290, 56, 34, 84
COLOURS = ('#1b6ca8', '#c0392b', '#7f8c8d', '#e08e0b', '#2d8659', '#7d3c98')


@dataclasses.dataclass
class Line:
    name: str
    points: list  # (x, y), in order of x


@dataclasses.dataclass
class Chart:
    title: str
    x_title: str
    x_range: tuple
    lines: list
    y_title: str = '% of cases'
    y_range: tuple = (0, 100)


def write(path, charts, columns=3):
    """One chart a cell, from left to right and downwards, each with the legend of its lines."""
    rows = -(-len(charts) // columns)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * columns}" height="{HEIGHT * rows}" '
             'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for number, chart in enumerate(charts):
        parts.append(f'<g transform="translate({number % columns * WIDTH},{number // columns * HEIGHT})">')
        parts += _chart(chart)
        parts.append('</g>')
    path.write_text('\n'.join([*parts, '</svg>\n']), encoding='utf-8')


def _chart(chart):
    (low, high), (y_low, y_high) = chart.x_range, chart.y_range
    left, right, top, bottom = MARGIN_LEFT, WIDTH - 12, MARGIN_TOP, HEIGHT - MARGIN_BOTTOM
    at_x = lambda x: left + (x - low) / (high - low) * (right - left)
    at_y = lambda y: bottom - (y - y_low) / (y_high - y_low) * (bottom - top)
    yield f'<text x="{left}" y="18" font-size="13">{escape(chart.title)}</text>'
    for step in range(5):
        y = y_low + step / 4 * (y_high - y_low)
        yield f'<line x1="{left}" x2="{right}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        x = low + step / 4 * (high - low)
        yield f'<text x="{at_x(x):.1f}" y="{bottom + 15}" text-anchor="middle">{x:.3g}</text>'
    yield f'<text x="{(left + right) / 2}" y="{bottom + 31}" text-anchor="middle">{escape(chart.x_title)}</text>'
    yield (f'<text transform="translate(14,{(top + bottom) / 2}) rotate(-90)" text-anchor="middle">'
           f'{escape(chart.y_title)}</text>')
    for line, colour in zip(chart.lines, COLOURS):
        points = ' '.join(f'{at_x(x):.1f},{at_y(y):.1f}' for x, y in line.points)
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in line.points)
    for number, (line, colour) in enumerate(zip(chart.lines, COLOURS)):
        x, y = left + number % 2 * (right - left) / 2, bottom + 40 + number // 2 * 14
        yield f'<rect x="{x:.1f}" y="{y}" width="9" height="9" fill="{colour}"/>'
        yield f'<text x="{x + 13:.1f}" y="{y + 8}">{escape(line.name)}</text>'
