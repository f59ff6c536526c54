# SPDX-License-Identifier: Apache-2.0
"""One registration of two volume nodes, and its result as nodes."""
from typing import Any, Callable, Optional

import numpy as np

from . import volumes
from .grid_transform import TransformChain, strides_for

# The nodes of a grid transform at most, for one registration and for a live session. A fixed stride does not do: with
# every fourth voxel of slices 4 mm apart a point was off by 2.6 mm (docs/use/python.md, "The same points by every way").
REGISTRATION_NODES = 1000000
LIVE_NODES = 250000
# The random points at which the grid is compared with the server.
COMPARED_POINTS = 1000


class Status:
    """What the screen says of a result: verdict and reasons in words, the expected error, the age, and whether the result
    is stale."""

    def __init__(self, verdict: str, reasons: str = "", expected_error_mm: Optional[float] = None,
                 age_s: Optional[float] = None, is_stale: bool = False, grid_error_mm: Optional[float] = None) -> None:
        self.verdict = verdict
        self.reasons = reasons
        self.expected_error_mm = expected_error_mm
        self.age_s = age_s
        self.is_stale = is_stale
        self.grid_error_mm = grid_error_mm

    @property
    def is_ok(self) -> bool:
        return self.verdict == "OK" and not self.is_stale

    def text(self) -> str:
        """One line. Its first word says whether the result may be used: OK, REVIEW, STALE or NONE."""
        parts = ["STALE" if self.is_stale else self.verdict or "NONE"]
        if self.age_s is not None:
            parts.append(f"age {self.age_s:.1f} s")
        if self.expected_error_mm is not None:
            parts.append(f"expected error {self.expected_error_mm:.1f} mm")
        if self.grid_error_mm is not None:
            parts.append(f"grid within {self.grid_error_mm:.1f} mm")
        if self.reasons:
            parts.append(self.reasons)
        return " | ".join(parts)


def status_of(report: Any, age_s: Optional[float] = None, is_stale: bool = False) -> Status:
    """The status of an intrawarp.Report."""
    return Status(report.verdict, "; ".join(str(reason) for reason in report.reasons), report.expected_error_mm, age_s,
                  is_stale)


class RegistrationOutcome:
    """What `register` leaves: the result's name on the server, its status, and whether it deforms."""

    def __init__(self, transform: str, status: Status, is_deformable: bool) -> None:
        self.transform = transform
        self.status = status
        self.is_deformable = is_deformable


def register(server: Any, intrawarp: Any, fixed_node: Any, moving_node: Any, chain: TransformChain, *,
             method: str = "auto", stride: Optional[Any] = None, error_map_node: Optional[Any] = None,
             progress: Optional[Callable[[Any], Any]] = None, cancel: Optional[Any] = None,
             **options: Any) -> RegistrationOutcome:
    """Registers, and shows the result in the nodes of `chain`.

    Args:
        server: an intrawarp.Server. The volumes are deleted from it when its `with` block ends.
        intrawarp: the module.
        fixed_node, moving_node: scalar volume nodes. A linear parent transform of the fixed one is part of its
            geometry; the moving one is taken on its own grid.
        chain: receives the transform; `chain.place(moving_node)` shows it.
        method, options: as of intrawarp.Server.register.
        stride: every how many voxels the grid of the transform has a node, one number or three; None: the finest with
            at most REGISTRATION_NODES.
        error_map_node: a scalar volume node that receives the expected error in mm.
        progress, cancel: as of intrawarp.Server.register.
    """
    fixed = volumes.image_of(fixed_node, intrawarp.Image)
    moving = volumes.image_of(moving_node, intrawarp.Image, ignore_transform=True)
    result = server.register(fixed, moving, method=method, progress=progress, cancel=cancel, **options)
    proto = result.load()
    is_deformable = proto.kind != intrawarp.v1.TRANSFORM_KIND_AFFINE
    if stride is None:
        stride = strides_for(fixed.geometry, REGISTRATION_NODES)
    field = result.field("float32", stride=stride) if is_deformable else None
    chain.update(field, result.affine)
    status = status_of(result.report)
    if field is not None:
        status.grid_error_mm = grid_error_mm(result, field, fixed.geometry)
    if error_map_node is not None and result.error_map is not None:
        volumes.show_image(result.error_map.expected, error_map_node)
    return RegistrationOutcome(result.name, status, is_deformable)


def grid_error_mm(result: Any, field: Any, geometry: Any) -> float:
    """How far a field between whose samples is interpolated is from the result itself: the largest distance in mm at
    COMPARED_POINTS random points of the fixed image, which are mapped on the server."""
    index = np.random.default_rng(1).uniform(0.0, 1.0, (COMPARED_POINTS, 3)) * (np.array(geometry.size_xyz) - 1)
    points = geometry.index_to_physical(index)
    return float(np.linalg.norm(field.map_points(points) - result.map_points(points), axis=1).max())
