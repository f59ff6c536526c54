# SPDX-License-Identifier: Apache-2.0
"""Paired statistics and measures against values worked out by hand."""

import unittest

import numpy as np

import measures
import paired_statistics


class SignedRank(unittest.TestCase):

    def test_counts_the_sign_patterns_that_are_as_extreme(self):
        # All positive: W = 0, which 1 of 2^5 patterns reaches, on two sides.
        self.assertAlmostEqual(paired_statistics.signed_rank([1, 2, 3, 4, 5]), 2 / 32)
        # W = 3: {}, {1}, {2}, {3}, {1, 2}.
        self.assertAlmostEqual(paired_statistics.signed_rank([1, 2, -3, 4, 5]), 2 * 5 / 32)

    def test_leaves_out_pairs_without_a_difference(self):
        self.assertAlmostEqual(paired_statistics.signed_rank([0, 1, 2, 3, 4, 5, 0]), 2 / 32)
        self.assertEqual(paired_statistics.signed_rank([0, 0]), 1)


class Holm(unittest.TestCase):

    def test_steps_down_and_never_falls(self):
        # Sorted: 0.01 * 3, 0.03 * 2, then 0.04 * 1 < 0.06, so 0.06.
        np.testing.assert_allclose(paired_statistics.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])

    def test_stays_below_one(self):
        np.testing.assert_allclose(paired_statistics.holm([0.5, 0.9]), [1, 1])


class MedianInterval(unittest.TestCase):

    def test_is_a_point_where_all_pairs_agree(self):
        self.assertEqual(paired_statistics.median_interval([2.5] * 7), (2.5, 2.5))

    def test_agrees_with_the_binomial_order_statistics(self):
        # 101 values: the 95 % interval of the median lies between the 41st and the 61st, give or take one.
        low, high = paired_statistics.median_interval(np.arange(101))
        self.assertAlmostEqual(low, 40, delta=1.5)
        self.assertAlmostEqual(high, 60, delta=1.5)


class Compare(unittest.TestCase):

    def test_takes_only_pairs_that_both_have(self):
        reference = {'a': 1, 'b': 2, 'c': 3, 'd': 9}
        result = paired_statistics.compare(reference, {'x': {'a': 2, 'b': 4, 'c': 6}, 'none': {'z': 1}})
        self.assertEqual([(c.name, c.count, c.median, c.reference_median, c.difference) for c in result],
                         [('x', 3, 4, 2, 2)])
        self.assertAlmostEqual(result[0].p, 2 / 8)
        self.assertAlmostEqual(result[0].p_holm, 2 / 8)


def determinant_by_hand(u, x, y, z):
    """det(I + du/dx) with differences (next - previous) / 2."""
    matrix = np.eye(3)
    for component in range(3):
        matrix[component, 0] += (u[x + 1, y, z, component] - u[x - 1, y, z, component]) / 2
        matrix[component, 1] += (u[x, y + 1, z, component] - u[x, y - 1, z, component]) / 2
        matrix[component, 2] += (u[x, y, z + 1, component] - u[x, y, z - 1, component]) / 2
    return np.linalg.det(matrix)


class SdLogJacobian(unittest.TestCase):

    def setUp(self):
        self.field = np.random.default_rng(1).normal(0, 0.3, (7, 6, 8, 3))

    def test_is_learn2reg_s(self):
        inner = [determinant_by_hand(self.field, x, y, z)
                 for x in range(2, 5) for y in range(2, 4) for z in range(2, 6)]
        logs = [np.log(min(max(value + 3, 1e-9), 1e9)) for value in inner]
        mean = sum(logs) / len(logs)
        expected = np.sqrt(sum((value - mean) ** 2 for value in logs) / len(logs))
        determinant = measures.learn2reg_determinant(self.field)
        self.assertEqual(determinant.shape, (3, 2, 4))
        self.assertAlmostEqual(measures.sd_log_jacobian(determinant), expected)

    def test_does_not_see_the_faces(self):
        before = measures.learn2reg_determinant(self.field)
        self.field[0] = self.field[:, -1] = self.field[:, :, 0] = 100
        np.testing.assert_array_equal(measures.learn2reg_determinant(self.field), before)

    def test_clips_what_lies_below_minus_three(self):
        self.assertAlmostEqual(measures.sd_log_jacobian(np.array([-5.0, -4.0])), 0)
        self.assertAlmostEqual(measures.sd_log_jacobian(np.array([-2.0, -5.0])), np.log(1e9) / 2)


class Distances(unittest.TestCase):

    def test_are_mean_p95_and_max(self):
        found = np.array([[3.0, 4, 0], [0, 0, 1]])
        self.assertEqual(measures.distances(found, np.zeros((2, 3))), {'mean': 3, 'p95': 4.8, 'max': 5})
