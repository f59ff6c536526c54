# SPDX-License-Identifier: Apache-2.0
"""The package against a real intrawarpd."""
import numpy as np
import pytest

import intrawarp as iw


@pytest.fixture
def server(real):
    with iw.connect(real) as server:
        yield server


def live(server):
    usage = server.info().usage
    return usage.volumes, usage.transforms, usage.sparse_matrices


def test_register_maps_and_cleans_up(real, pair):
    with iw.connect(real) as server:
        before = live(server)
    with iw.connect(real) as server:
        result = server.register(pair[0], pair[1], method="affine", metric="ssd")
        points = np.array([[0.0, 0.0, 50.0], [5.0, 10.0, 45.0]])
        mapped = result.map_points(points)
        assert np.allclose(mapped, points + 2.0, atol=0.2)
        assert np.allclose(result.map_points(points * [-1, -1, 1], space="RAS"), mapped * [-1, -1, 1], atol=1e-9)
        assert np.allclose(result.inverse_points(mapped), points, atol=1e-3)
        warped = result.warped()
        assert warped.geometry.same_grid(pair[0].geometry)
        assert np.abs(warped.array[4:-4, 4:-4, 4:-4] - pair[0].array[4:-4, 4:-4, 4:-4]).mean() < 20
        assert live(server)[0] == before[0] + 2
    with iw.connect(real) as server:
        assert live(server) == before


def test_result_is_not_a_truth_value(server, pair):
    result = server.register(pair[0], pair[1], method="rigid", iterations=1, levels=1)
    with pytest.raises(TypeError, match="raise_if_not_ok"):
        bool(result)
    if not result.ok:
        with pytest.raises(iw.ReviewNeeded, match=str(result.reasons[0])[:20]):
            result.raise_if_not_ok()


def test_errors_have_reason_field_and_call(server, pair):
    with pytest.raises(iw.NotFound) as caught:
        server.register(pair[0], "volumes/none")
    assert (caught.value.reason, caught.value.resource) == ("RESOURCE_NOT_FOUND", "volumes/none")
    assert len(caught.value.call_id) == 32 and caught.value.call_id in str(caught.value)
    with pytest.raises(iw.InvalidArgument) as caught:
        server.register(pair[0], pair[1], method="ffd", spacing_vox=0.1)
    assert caught.value.field == "options.stages[0].ffd.spacing_vox"


@pytest.mark.parametrize("shared", [False, True])
def test_session_answers_every_frame(server, pair, shared):
    with server.navigate(fixed=pair[0], method="affine", iterations=3, levels=1, field="int16",
                         shared_memory=shared) as session:
        numbers = [session.send(pair[1]) for _ in range(3)]
        answers = [session.receive(timeout=60) for _ in numbers]
        assert [answer.number for answer in answers] == numbers
        assert all(answer.error is None and answer.field.array.shape == (20, 22, 24, 3) for answer in answers)
        assert all(answer.shared == shared for answer in answers)
        here = session.map_points([[0.0, 0.0, 50.0]])
        there = server.map_points(answers[-1].transform, [[0.0, 0.0, 50.0]])
        assert np.allclose(here.points, there, atol=0.01) and here.number == numbers[-1] and here.age > 0
    assert session.statistics.frames_ok == 3


def test_multiply_is_scipys(server):
    sparse = pytest.importorskip("scipy.sparse")
    a = sparse.random(60, 40, 0.1, random_state=1, format="csc")
    b = sparse.random(40, 50, 0.1, random_state=2)
    product = server.multiply(a, b)
    assert product.dtype == np.float64 and abs(product - a @ b).max() < 1e-12
