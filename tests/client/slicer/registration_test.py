# SPDX-License-Identifier: Apache-2.0
"""A registration and a live session, against the server for tests."""
import time
import types

import mrml
import numpy as np
import pytest

import intrawarp
import intrawarp.testing
from IntrawarpLib import live, registration, volumes
from IntrawarpLib.grid_transform import TransformChain, grid_points

SHIFT = np.eye(4)
SHIFT[:3, 3] = 4.0, -3.0, 2.0


@pytest.fixture()
def server():
    with intrawarp.testing.FakeServer() as fake:
        fake.transform = SHIFT
        yield fake


@pytest.fixture(scope="module")
def nodes():
    pair = intrawarp.phantom((24, 20, 16), (5.0, 5.0, 6.0))
    made = []
    for name, image in (("fixed", pair.fixed), ("moving", pair.moving)):
        node = mrml.ScalarVolumeNode(name)
        volumes.show_image(image, node)
        made.append(node)
    return made


def chain():
    return TransformChain(mrml.LinearTransformNode("affine"), mrml.GridTransformNode("grid"), mrml.OrientedGridTransform())


def shifted_ras(point):
    return point[0] - 4.0, point[1] + 3.0, point[2] + 2.0


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_registration_fills_the_chain_and_says_its_verdict(server, nodes):
    fixed, moving = nodes
    shown = chain()
    with intrawarp.connect(server.address) as client:
        outcome = registration.register(client, intrawarp, fixed, moving, shown, method="affine")
    assert outcome.status.verdict == "OK" and outcome.status.text().startswith("OK")
    assert shown.linear_node.from_world((1.0, 2.0, 3.0)) == pytest.approx(shifted_ras((1.0, 2.0, 3.0)), abs=1e-3)


class Bent:
    """A result that deforms, as registration.register uses one: the server maps it exactly, a field samples it."""
    name, affine, error_map = "transforms/bent", np.eye(4), None
    report = types.SimpleNamespace(verdict="OK", reasons=(), expected_error_mm=0.5)

    def __init__(self, geometry):
        self.geometry = geometry

    def load(self):
        return types.SimpleNamespace(kind=intrawarp.v1.TRANSFORM_KIND_CONTROL_GRID)

    def map_points(self, points):
        return points + np.sin(points / 8.0)

    def field(self, encoding, stride):
        strides = np.broadcast_to(stride, 3)
        size = [-(-n // int(k)) for n, k in zip(self.geometry.size_xyz, strides)]
        grid = intrawarp.Geometry(size, strides * self.geometry.spacing_xyz, self.geometry.origin_xyz,
                                  self.geometry.direction_xyz)
        at = grid_points(grid)
        displacement = (self.map_points(at) - at).astype(np.float32)
        return intrawarp.Field(displacement, grid, encoding, affine=np.eye(4), domain=self.geometry)


def test_the_status_says_how_far_the_grid_is_from_the_result(nodes):
    fixed, moving = nodes
    errors = []
    for stride in (None, 4):
        server = types.SimpleNamespace(register=lambda fixed, moving, **options: Bent(fixed.geometry))
        shown = chain()
        outcome = registration.register(server, intrawarp, fixed, moving, shown, method="affine,ffd", stride=stride)
        assert outcome.is_deformable
        errors.append(outcome.status.grid_error_mm)
        assert f"grid within {errors[-1]:.1f} mm" in outcome.status.text()
    assert errors[0] < 0.2 and errors[1] > 1.0


def test_a_live_session_follows_the_volume(server, nodes):
    fixed, frames = nodes
    shown = chain()
    with intrawarp.connect(server.address) as client:
        session = live.LiveSession(client, intrawarp, fixed, shown, method="affine")
        assert session.status().text().startswith("NONE"), "nothing has come yet"
        session.offer(frames)
        assert wait_for(lambda: session.poll().verdict == "OK" and session.shown == 1)
        assert shown.linear_node.from_world((1.0, 2.0, 3.0)) == pytest.approx(shifted_ras((1.0, 2.0, 3.0)), abs=1e-3)
        mapped = session.map_points([[1.0, 2.0, 3.0]])
        assert mapped.points[0] == pytest.approx(shifted_ras((1.0, 2.0, 3.0)), abs=1e-3)
        moved = SHIFT.copy()
        moved[0, 3] = -6.0
        server.transform = moved
        session.offer(frames)
        assert wait_for(lambda: session.poll() is not None and session.shown == 2)
        assert shown.linear_node.from_world((0.0, 0.0, 0.0)) == pytest.approx((6.0, 3.0, 2.0), abs=1e-3)
        session.close()
    assert session.sent == 2 and session.failed == 0


def test_an_old_result_is_marked_as_stale(server, nodes):
    fixed, frames = nodes
    now = [100.0]
    with intrawarp.connect(server.address) as client:
        session = live.LiveSession(client, intrawarp, fixed, chain(), method="affine", stale_s=2.0, clock=lambda: now[0])
        session.offer(frames)
        assert wait_for(lambda: session.poll().verdict == "OK")
        assert not session.status().is_stale
        now[0] += 3.0
        status = session.status()
        assert status.is_stale and not status.is_ok and status.text().startswith("STALE")
        session.close()
