# SPDX-License-Identifier: Apache-2.0
"""Small folders in the layouts of DIR-Lab and Learn2Reg, read back as pairs."""

import json
import pathlib
import tempfile
import unittest

import nibabel
import numpy as np

import datasets
import mappings
import pairs
import table


def write_points(path, points, delimiter):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, points, fmt='%g', delimiter=delimiter)


class Layouts(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / 'data'
        self.folder.mkdir()
        self.work = pathlib.Path(folder.name) / 'work'

    def pairs(self):
        return list(datasets.prepare(self.folder, self.work))

    def raw(self, path, size, slices):
        """Values count up in the order of the file: x, then y, then z."""
        path.parent.mkdir(parents=True, exist_ok=True)
        (np.arange(size * size * slices) % 30000).astype('<i2').tofile(path)

    def test_dirlab_4dct(self):
        case = self.folder / 'Case2Pack'
        for phase in ('T00', 'T50'):
            self.raw(case / f'Images/case2_{phase}_s.img', 256, 3)
        write_points(case / 'ExtremePhases/Case2_300_T00_xyz.txt', [[1, 1, 1], [11, 21, 3]], '\t')
        write_points(case / 'ExtremePhases/Case2_300_T50_xyz.txt', [[2, 1, 1], [11, 21, 2]], '\t')
        pair, = self.pairs()
        self.assertEqual(pair.name, 'DIR-Lab 4DCT 2')
        np.testing.assert_allclose(pair.fixed_points, [[0, 0, 0], [11.6, 23.2, 5]])
        np.testing.assert_allclose(pair.moving_points, [[1.16, 0, 0], [11.6, 23.2, 2.5]])
        image = nibabel.load(pair.fixed)
        self.assertEqual(image.shape, (256, 256, 3))
        np.testing.assert_allclose(pairs.lps_affine(image), np.diag([1.16, 1.16, 2.5, 1]), atol=1e-6)
        self.assertEqual(image.dataobj[5, 2, 1], (256 * 256 + 2 * 256 + 5) % 30000)

    def test_dirlab_copdgene(self):
        inner = self.folder / 'copd7/copd7'
        for breath in ('iBH', 'eBH'):
            self.raw(inner / f'copd7_{breath}CT.img', 512, 2)
            write_points(inner / f'copd7_300_{breath}_xyz_r1.txt', [[3, 1, 2]], '\t')
        pair, = self.pairs()
        np.testing.assert_allclose(pair.fixed_points, [[1.25, 0, 2.5]])

    def test_a_cut_off_raw_file_is_named(self):
        for phase in ('T00', 'T50'):
            self.raw(self.folder / f'Case1Pack/Images/case1_{phase}_s.img', 100, 3)
        with self.assertRaisesRegex(datasets.UnknownLayout, 'case1_T00_s.img: 60000 bytes'):
            self.pairs()

    def test_learn2reg(self):
        voxels = np.zeros((8, 9, 10), dtype=np.int16)
        voxels[2:6, 2:6, 2:6] = 3
        fixed, moving = np.diag([-2.0, -2, 2, 1]), np.diag([-2.0, -2, 2, 1])
        moving[:3, 3] = 50  # which Learn2Reg does not look at
        for name, affine in (('A_0000', fixed), ('B_0000', moving)):
            for kind in ('images', 'labels'):
                path = self.folder / f'{kind}Tr/{name}.nii.gz'
                path.parent.mkdir(exist_ok=True)
                nibabel.save(nibabel.Nifti1Image(voxels, affine), path)
        write_points(self.folder / 'keypointsTr/A_0000.csv', [[1, 2, 3], [4, 4, 4]], ',')
        write_points(self.folder / 'keypointsTr/B_0000.csv', [[1, 2, 4], [4, 4, 4]], ',')
        entry = {'fixed': './imagesTr/A_0000.nii.gz', 'moving': './imagesTr/B_0000.nii.gz'}
        description = {'name': 'Tiny', 'modality': {'0': 'CT'}, 'registration_val': [entry]}
        (self.folder / 'Tiny_dataset.json').write_text(json.dumps(description))
        pair, = self.pairs()
        self.assertEqual((pair.name, pair.metric), ('Tiny 0', 'ssd'))
        np.testing.assert_allclose(pair.moving_points - pair.fixed_points, [[0, 0, 2], [0, 0, 0]], atol=1e-6)
        figures = table.figures_of(pair, mappings.Affine(np.eye(4)))
        self.assertAlmostEqual(figures['error'], 1)
        self.assertAlmostEqual(figures['dice'], 1)
        self.assertEqual((figures['sd_log_j'], figures['min_det'], figures['folded']), (0, 1, 0))

    def test_displacements_are_in_voxels_of_the_fixed_grid(self):
        affine = np.diag([2.0, 4, 5, 1])
        path = pairs.write_lps(self.folder / 'image.nii.gz', np.zeros((5, 6, 7), np.float32), affine)
        shift = mappings.Affine(np.array([[1, 0, 0, 2], [0, 1, 0, 2], [0, 0, 1, 10], [0, 0, 0, 1.0]]))
        field = table.displacement_on(nibabel.load(path), shift)
        self.assertEqual(field.shape, (5, 6, 7, 3))
        np.testing.assert_allclose(field, np.broadcast_to([1, 0.5, 2], field.shape), atol=1e-6)
