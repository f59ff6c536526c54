# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows: small tables, and the montage. Every text is escaped; nothing is fetched."""
import html
import itertools
from typing import Any, List, Optional, Tuple

import numpy as np

from .errors import InvalidArgument

_AXES = {"x": 0, "y": 1, "z": 2}
# The letters of an LPS axis, from its negative end to its positive one.
_ENDS = (("R", "L"), ("A", "P"), ("I", "S"))
_COLOURS = {"OK": "#1a7f37", "REVIEW": "#9a6700"}


def rows_html(title: str, rows: List[Tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(key)}</th><td style='text-align:left'>"
        f"{html.escape(str(value))}</td></tr>"
        for key, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{html.escape(title)}</b></caption>{cells}</table>"


def image_html(image: Any) -> str:
    geometry = image.geometry
    return rows_html(
        "Image",
        [
            ("voxels", f"{image.dtype.name}, {' x '.join(map(str, geometry.size_xyz))} (x, y, z)"),
            ("spacing", " x ".join(f"{each:.6g}" for each in geometry.spacing_xyz) + " mm"),
            ("origin (LPS)", ", ".join(f"{each:.6g}" for each in geometry.origin_xyz) + " mm"),
            ("direction (LPS)", np.array2string(geometry.direction_xyz, precision=4)),
        ],
    )


def report_html(name: str, report: Any) -> str:
    rows = [("transform", name)]
    if report.error is not None:
        rows.append(
            ("expected error", f"{report.error.expected_mm:.2f} mm (95 % below {report.error.bound_mm:.2f} mm)")
        )
    rows.append(("overlap", f"{report.overlap:.0%}"))
    rows.append(("time", f"{report.proto.latency.total_ms:.0f} ms on {report.proto.device}"))
    rows += [("reason", str(each)) for each in report.reasons]
    colour = _COLOURS.get(report.verdict, "#57606a")
    badge = f"<p><b style='color:{colour}'>{html.escape(report.verdict)}</b></p>"
    return badge + rows_html("Registration", rows)


def plane_of(volume: Any, axis: int, index: int) -> Any:
    """A plane of an array (z, y, x, ...)."""
    return np.take(volume, index, axis=2 - axis)


class View:
    """How a plane across a voxel axis is turned so that it looks as radiologists expect: the patient's left is on the
    right, the front and the head are up; in a sagittal plane the front is on the left.

    Attributes:
        letters: of the left, right, top and bottom edges (R, L, A, P, I, S); of an oblique grid the nearest ones.
    """

    def __init__(self, geometry: Any, axis: int) -> None:
        direction = geometry.direction_xyz
        # Which axis of the patient each voxel axis runs along; no two share one.
        along = max(
            itertools.permutations(range(3)),
            key=lambda each: float(sum(abs(direction[world, voxel]) for voxel, world in enumerate(each))),
        )
        columns, rows = (each for each in range(3) if each != axis)
        left, right = _ENDS[along[columns]]
        top, bottom = _ENDS[along[rows]]
        is_upright = along[rows] == 2
        if is_upright:
            top, bottom = bottom, top
        self.letters = left, right, top, bottom
        self._flips_columns = direction[along[columns], columns] < 0
        self._flips_rows = (direction[along[rows], rows] < 0) != is_upright

    def turn(self, plane: Any) -> Any:
        """A plane (rows, columns) with its first row at the top."""
        return plane[:: -1 if self._flips_rows else 1, :: -1 if self._flips_columns else 1]


def _window(plane: Any) -> Tuple[float, float]:
    finite = plane[np.isfinite(plane)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = np.percentile(finite, (1, 99))
    return float(low), float(high) if high > low else float(low) + 1.0


def _to_unit(plane: Any) -> Any:
    low, high = _window(plane)
    return np.clip((plane - low) / (high - low), 0, 1)


def _checkerboard(first: Any, second: Any) -> Any:
    side = max(1, max(first.shape) // 8)
    rows, columns = np.indices(first.shape)
    return np.where((rows // side + columns // side) % 2 == 0, first, second)


def _error_plane(report: Any, fixed: Any, axis: int, index: int) -> Optional[Any]:
    """The bound of the error at the plane's voxels: of the nearest block."""
    errors = report.error_map
    if errors is None:
        return None
    grid = errors.bound.geometry
    sizes = fixed.geometry.size_xyz
    others = [each for each in range(3) if each != axis]
    rows, columns = np.indices((sizes[others[1]], sizes[others[0]]))
    voxels = np.empty((*rows.shape, 3))
    voxels[..., axis], voxels[..., others[0]], voxels[..., others[1]] = index, columns, rows
    at = np.rint(grid.physical_to_index(fixed.geometry.index_to_physical(voxels))).astype(int)
    at = np.clip(at, 0, np.array(grid.size_xyz) - 1)
    return errors.bound.array[at[..., 2], at[..., 1], at[..., 0]]


def plot_result(
    fixed: Any, warped: Any, field: Any, report: Any, axis: str, index: Optional[int], figure: Optional[Any]
) -> Any:
    if axis not in _AXES:
        raise InvalidArgument(f"axis: {axis!r} is none of x, y, z", fields=(("axis", "is unknown"),))
    normal = _AXES[axis]
    sizes = fixed.geometry.size_xyz
    place = sizes[normal] // 2 if index is None else int(index)
    if not 0 <= place < sizes[normal]:
        raise InvalidArgument(f"index: must be 0 to {sizes[normal] - 1}", fields=(("index", "is outside"),))
    if figure is None:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(11, 7), constrained_layout=True)
    others = [each for each in range(3) if each != normal]
    spacing = fixed.geometry.spacing_xyz
    aspect = spacing[others[1]] / spacing[others[0]]
    first, second = (_to_unit(plane_of(np.asarray(each.values, np.float32), normal, place)) for each in (fixed, warped))
    motion = np.linalg.norm(plane_of(field.array, normal, place), axis=-1)
    panels: List[Tuple[str, Any, str, Optional[str]]] = [
        ("fixed", first, "gray", None),
        ("moving, warped", second, "gray", None),
        ("checkerboard", _checkerboard(first, second), "gray", None),
        ("difference", second - first, "coolwarm", None),
        ("displacement, mm", motion, "viridis", "mm"),
    ]
    bound = _error_plane(report, fixed, normal, place)
    if bound is not None:
        panels.append(("95 % of errors are below, mm", bound, "cividis", "mm"))
    view = View(fixed.geometry, normal)
    for number, (title, plane, colours, unit) in enumerate(panels):
        axes = figure.add_subplot(2, 3, number + 1)
        limits = {"vmin": -1, "vmax": 1} if title == "difference" else {}
        shown = axes.imshow(
            view.turn(plane), cmap=colours, origin="upper", aspect=aspect, interpolation="nearest", **limits
        )
        if number == 0:
            for letter, x, y in zip(view.letters, (0.02, 0.98, 0.5, 0.5), (0.5, 0.5, 0.98, 0.02)):
                axes.text(x, y, letter, transform=axes.transAxes, color="#ffd33d", ha="center", va="center")
        axes.set_title(title)
        axes.set_axis_off()
        if unit is not None:
            figure.colorbar(shown, ax=axes, shrink=0.8)
    error = "" if report.expected_error_mm is None else f", expected error {report.expected_error_mm:.2f} mm"
    figure.suptitle(f"{report.verdict}{error} ({axis} = {place})")
    return figure
