# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of surgery.py on arrays whose answers are known."""

import types
import unittest

import nibabel
import numpy as np

import pairs
import surgery


def image_of(values, spacing=(2.0, 3.0, 4.0), origin=(5.0, -6.0, 7.0)):
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return nibabel.Nifti1Image(np.asarray(values, dtype=np.float32), pairs.LPS_FROM_RAS @ affine)


def scene_of(distance, truth, hole=None):
    scene = types.SimpleNamespace(image=image_of(np.zeros(distance.shape)), spacing=np.array([2.0, 3.0, 4.0]),
                                  truth=truth, body=np.ones(distance.shape, dtype=bool), hole=hole, distance=distance)
    return scene


class Arithmetic(unittest.TestCase):
    def test_dice(self):
        a, b = np.zeros((4, 4), dtype=bool), np.zeros((4, 4), dtype=bool)
        self.assertEqual(surgery.dice(a, b), 1)
        a[0], b[0, :2] = True, True
        self.assertAlmostEqual(surgery.dice(a, b), 2 * 2 / 6)
        self.assertEqual(surgery.dice(a, ~a), 0)

    def test_determinants_of_a_linear_map(self):
        image = image_of(np.zeros((6, 7, 8)))
        linear = np.array([[1.1, 0.2, 0.0], [0.0, 0.9, 0.1], [0.3, 0.0, 1.2]])
        displacement = surgery.displacement_on(image, lambda points: points @ linear.T + [1, 2, 3])
        determinant = surgery.determinants(image, displacement)
        self.assertTrue(np.allclose(determinant, np.linalg.det(linear), atol=1e-9))

    def test_samples_lie_where_the_grids_say(self):
        source = image_of(np.arange(8).reshape(2, 2, 2), spacing=(4, 6, 8), origin=(6, -4.5, 9))
        values = surgery.sampled_nearest(source, image_of(np.zeros((4, 4, 4))))
        self.assertEqual(values[0, 0, 0], 0)
        self.assertEqual(values[3, 3, 3], 7)
        self.assertEqual(values[3, 0, 0], 4)
        self.assertTrue(np.isnan(surgery.sampled_nearest(source, image_of(np.zeros((9, 9, 9))))[8, 8, 8]))

    def test_distances_are_those_of_every_pair(self):
        mask = np.random.default_rng(3).random((7, 6, 5)) < 0.05
        mask[2, 3, 1] = True
        spacing = np.array([2.0, 3.0, 4.0])
        places = np.argwhere(mask) * spacing
        every = np.argwhere(np.ones(mask.shape)) * spacing
        nearest = np.linalg.norm(every[:, np.newaxis] - places, axis=-1).min(axis=1)
        self.assertTrue(np.allclose(surgery.distance_to(mask, spacing).ravel(), nearest))
        self.assertTrue(np.isinf(surgery.distance_to(np.zeros((3, 3, 3), dtype=bool), spacing)).all())

    def test_errors_by_place(self):
        distance = np.zeros((40, 1, 1)) + np.arange(40).reshape(-1, 1, 1)
        distance = np.broadcast_to(distance, (40, 5, 5)).copy()
        hole = distance < 3
        distance[hole] = 0
        displacement = np.zeros((40, 5, 5, 3))
        displacement[..., 0] = np.where(hole, 9, np.where(distance <= 14, 2, 1))
        figures = surgery.figures_of(scene_of(distance, np.zeros((40, 5, 5, 3)), hole), displacement)
        self.assertEqual(figures['inside'], 9)
        self.assertEqual(figures['near'], 2)
        self.assertEqual(figures['far'], 1)
        self.assertTrue(1 < figures['outside'] < 2)

    def test_coverage_counts_what_has_a_bound(self):
        error, bound = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, np.nan, 5.0])
        everywhere = np.ones(4, dtype=bool)
        self.assertAlmostEqual(surgery.covered(error, bound, everywhere), 2 / 3)
        self.assertIsNone(surgery.covered(error, bound, np.array([False, False, True, False])))


if __name__ == '__main__':
    unittest.main()
