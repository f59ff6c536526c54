# SPDX-License-Identifier: Apache-2.0
"""Pairs with a known map: the truth that goes with them is the truth of their voxels."""

import os
import pathlib
import tempfile
import unittest

import numpy as np

import known_maps
import pairs
import robustness
import robustness_cases


def blob(shape=(20, 24, 18)):
    """A smooth image on an oblique, anisotropic grid."""
    affine = known_maps.rotation_about([1, 2, 3], 30, np.zeros(3)) @ np.diag([2.0, 1.5, 3.0, 1])
    affine[:3, 3] = [5, -7, 11]
    volume = known_maps.Volume(np.zeros(shape, dtype=np.float32), affine)
    points = volume.points() - volume.centre()
    values = 100 * np.exp(-(points**2).sum(axis=1) / 200) + points @ [0.5, 0.2, 0.1]
    volume.voxels = values.reshape(shape).astype(np.float32)
    return volume


class Matrices(unittest.TestCase):

    def test_a_quarter_turn_about_z_takes_x_to_y(self):
        matrix = known_maps.rotation_about([0, 0, 2], 90, np.array([1.0, 1, 1]))
        np.testing.assert_allclose(pairs.map_points(matrix, np.array([[2.0, 1, 5]])), [[1, 2, 5]], atol=1e-12)


class Bumps(unittest.TestCase):

    def test_reach_their_amplitude_without_folding(self):
        volume = blob()
        for seed, amplitude in ((1, 5), (2, 30), (3, 60)):
            bumps = known_maps.Bumps.random(np.random.default_rng(seed), volume, amplitude)
            length = np.linalg.norm(bumps(volume.points()) - volume.points(), axis=1)
            self.assertAlmostEqual(length.max(), amplitude, delta=0.1 * amplitude)
            self.assertGreater(known_maps.smallest_determinant(bumps, volume), 0.2)

    def test_smallest_determinant_of_a_scaling(self):
        volume = blob()
        scale = np.diag([0.5, 1, 2, 1])
        self.assertAlmostEqual(known_maps.smallest_determinant(lambda x: pairs.map_points(scale, x), volume), 1)
        scale = np.diag([-0.5, 1, 1, 1])
        self.assertAlmostEqual(known_maps.smallest_determinant(lambda x: pairs.map_points(scale, x), volume), -0.5)


class Volumes(unittest.TestCase):

    def test_warped_and_moved_images_fit_their_map(self):
        volume = blob()
        bumps = known_maps.Bumps.random(np.random.default_rng(4), volume, 4)
        move = known_maps.translation([3, 4, 5]) @ known_maps.rotation_about([1, 0, 1], 70, volume.centre())
        fixed, moving = known_maps.warped(volume, bumps), known_maps.moved(volume, move)
        mapped = pairs.map_points(move, bumps(fixed.points()))
        inside = moving.contains(mapped)
        self.assertGreater(inside.mean(), 0.7)
        np.testing.assert_allclose(moving.sample(mapped)[inside], fixed.voxels.ravel()[inside], atol=1e-2)

    def test_a_cut_keeps_positions(self):
        volume = blob()
        for from_start in (True, False):
            cut = known_maps.cropped(volume, 1, 0.5, from_start)
            self.assertEqual(cut.voxels.shape, (20, 12, 18))
            np.testing.assert_allclose(volume.sample(cut.points()), cut.voxels.ravel(), atol=1e-2)

    def test_coarser_voxels_keep_positions(self):
        volume = blob((40, 40, 20))
        volume.voxels[:] = (volume.points() @ [1, 2, 3]).reshape(volume.voxels.shape)
        coarse = known_maps.resampled(volume, 20)
        self.assertEqual(coarse.voxels.shape, (20, 15, 15))  # 4 mm: a 20th of 80
        inner = (slice(3, -3), slice(3, -3), slice(3, -3))
        expected = (coarse.points() @ [1, 2, 3]).reshape(coarse.voxels.shape)
        np.testing.assert_allclose(coarse.voxels[inner], expected[inner], atol=0.01)

    def test_a_hole_changes_its_ball_alone(self):
        volume = blob()
        mask = known_maps.body(volume)
        cut, ball = known_maps.resected(volume, np.random.default_rng(5), mask, 6)
        np.testing.assert_array_equal(cut.voxels[~ball], volume.voxels[~ball])
        spheres = 4 / 3 * np.pi * 6**3 / (2 * 1.5 * 3)
        self.assertAlmostEqual(ball.sum(), spheres, delta=0.25 * spheres)

    def test_changes_of_intensity(self):
        volume = blob()
        low, high = np.percentile(volume.voxels, [0.5, 99.5])
        upside_down = known_maps.inverted(volume)
        self.assertAlmostEqual(np.corrcoef(upside_down.voxels.ravel(), volume.voxels.ravel())[0, 1], -1, places=2)
        self.assertAlmostEqual(upside_down.voxels.max(), high, places=2)
        self.assertAlmostEqual(known_maps.gamma(volume, 0.5).voxels.min(), low, places=2)
        twice = known_maps.gained(volume, 2, 0.5)
        expected = low + 2 * (volume.voxels - low) + 0.5 * (high - low)
        np.testing.assert_allclose(twice.voxels, expected, rtol=1e-3, atol=0.1)


class Cases(unittest.TestCase):
    """With phantoms alone, since they need no data."""

    def make(self, seed):
        with tempfile.TemporaryDirectory() as folder:
            cases = robustness_cases.Cases([os.environ['INTRAWARP_CLI'], 'phantom'], None, pathlib.Path(folder))
            return cases.make(seed)

    def test_a_seed_is_one_case(self):
        first, again, other = self.make(3), self.make(3), self.make(19)
        np.testing.assert_array_equal(first.fixed.voxels, again.fixed.voxels)
        np.testing.assert_array_equal(first.moving.voxels, again.moving.voxels)
        np.testing.assert_array_equal(first.mapped, again.mapped)
        self.assertEqual((first.kind, other.kind), ('crop', 'crop'))
        self.assertNotEqual(first.amplitude, other.amplitude)

    def test_the_truth_is_the_truth(self):
        for seed, kind in ((1, 'rotation'), (3, 'crop'), (10, 'resection')):
            case = self.make(seed)
            self.assertEqual(case.kind, kind)
            values = case.moving.sample(case.mapped)
            fit = np.corrcoef(values, case.fixed.voxels.ravel()[case.indices])[0, 1]
            self.assertGreater(fit, 0.98, kind)
            self.assertLess(robustness.errors_of(case, lambda _, case=case: case.mapped)['mean_vox'], 1e-9)
