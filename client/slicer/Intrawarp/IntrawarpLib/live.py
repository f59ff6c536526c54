# SPDX-License-Identifier: Apache-2.0
"""A session on a volume that changes: by OpenIGTLink, a sequence, or DICOM that comes in.

Frames go out as the volume node changes; answers are taken by `poll`, which the main thread calls from a timer. Nothing
of MRML is touched on another thread. The server answers the newest frame: frames that come faster than they are answered
are left out, on both sides.
"""
import time
from typing import Any, Callable, Optional

from . import volumes
from .grid_transform import TransformChain, strides_for
from .registration import LIVE_NODES, Status, status_of

# A result older than this is marked as stale, seconds.
DEFAULT_STALE_S = 2.0


class LiveSession:
    """One session. For the main thread.

    Attributes:
        sent, shown, failed: frames that were sent, whose result is or was shown, and that came back with an error.
        superseded: frames whose place a newer one has taken.
        update_s: how long the last update of the nodes took, seconds.
    """

    def __init__(self, server: Any, intrawarp: Any, resident_node: Any, chain: TransformChain, *,
                 resident_is_fixed: bool = True, method: str = "log-demons", stride: Optional[Any] = None,
                 error_map_node: Optional[Any] = None, stale_s: float = DEFAULT_STALE_S,
                 deadline_s: Optional[float] = None, clock: Callable[[], float] = time.monotonic,
                 **options: Any) -> None:
        """Uploads the resident volume and opens the session.

        Args:
            server: an intrawarp.Server.
            intrawarp: the module.
            resident_node: the volume that stays on the server; each frame is the other image.
            chain: the nodes that show the newest result.
            resident_is_fixed: the frames are the moving image; False: the frames are the fixed one.
            stride: every how many voxels the grid of the transform has a node, one number or three; None: the finest
                with at most LIVE_NODES on the resident volume's grid.
            stale_s: a result whose frame is older is stale.
            deadline_s: a frame without an answer by then fails.
            clock: seconds, monotonic; for tests.
        """
        self._intrawarp = intrawarp
        self._chain = chain
        self._error_map_node = error_map_node
        self._stale_s = stale_s
        self._clock = clock
        self._newest: Optional[Any] = None
        self._newest_at = 0.0
        self._last_error = ""
        self.sent = self.shown = self.failed = self.superseded = 0
        self.update_s = 0.0
        image = volumes.image_of(resident_node, intrawarp.Image, ignore_transform=not resident_is_fixed)
        if stride is None:
            stride = strides_for(image.geometry, LIVE_NODES)
        side = {"fixed" if resident_is_fixed else "moving": server.put(image)}
        self._session = server.navigate(method=method, field="int16" if _deforms(method) else None,
                                        stride=stride if _deforms(method) else None, latest=True, deadline=deadline_s,
                                        error_map=error_map_node is not None, **side, **options)
        self._ignores_transform = resident_is_fixed

    def offer(self, frame_node: Any) -> int:
        """Sends the volume of a node as the next frame, and returns its number. Never waits."""
        image = volumes.image_of(frame_node, self._intrawarp.Image, ignore_transform=self._ignores_transform)
        number = self._session.send(image)
        self.sent += 1
        return int(number)

    def poll(self) -> Status:
        """Takes all answers that have come, shows the newest result, and returns the status for the screen."""
        newest = None
        while True:
            answer = self._next()
            if answer is None:
                break
            newest = self._take(answer) or newest
        if newest is not None:
            self._show(newest)
        return self.status()

    def _next(self) -> Optional[Any]:
        try:
            return self._session.receive(timeout=0)
        except self._intrawarp.errors.DeadlineExceeded:
            return None

    def _take(self, answer: Any) -> Optional[Any]:
        if answer.error is None:
            return answer
        if answer.superseded:
            self.superseded += 1
        else:
            self.failed += 1
            self._last_error = str(answer.error)
        return None

    def _show(self, answer: Any) -> None:
        begin = time.perf_counter()
        affine = self._intrawarp.field.affine_of(answer.report.proto.affine)
        self._chain.update(answer.field, affine)
        if self._error_map_node is not None and answer.report.error_map is not None:
            volumes.show_image(answer.report.error_map.expected, self._error_map_node)
        self.update_s = time.perf_counter() - begin
        self.shown += 1
        self._newest = answer
        self._newest_at = self._clock() - answer.age
        self._last_error = ""

    def status(self) -> Status:
        """Verdict and age of what is shown; stale when its frame is older than `stale_s`."""
        if self._newest is None:
            return Status("", self._last_error)
        age = self._clock() - self._newest_at
        status = status_of(self._newest.report, age, age > self._stale_s)
        if self._last_error:
            status.reasons = "; ".join(filter(None, [status.reasons, "last frame failed: " + self._last_error]))
        return status

    def map_points(self, points_ras: Any) -> Any:
        """Points through the newest field, RAS mm, with age and verdict (intrawarp.MappedPoints). No call is made."""
        return self._session.map_points(points_ras, space="RAS")

    def close(self) -> None:
        self._session.close()


def _deforms(method: str) -> bool:
    return not method.replace(" ", "").split(",")[-1] in ("rigid", "affine")
