# SPDX-License-Identifier: Apache-2.0
"""Folders of published data as pairs: DIR-Lab (4DCT and COPDgene) and Learn2Reg, as they are distributed.

DIR-Lab, 4DCT:    CaseNPack/Images/caseN_T00*.img and ..._T50*.img (int16, little-endian, x fastest),
                  CaseNPack/[eE]xtremePhases/*_T00_xyz.txt and *_T50_xyz.txt (voxels, counted from 1). T00 is fixed.
DIR-Lab, COPDgene: copdN/copdN_iBHCT.img, copdN_eBHCT.img, copdN_300_iBH_xyz_r1.txt, copdN_300_eBH_xyz_r1.txt, also one
                  folder deeper. iBH is fixed.
Learn2Reg:        NAME_dataset.json with registration_val (a list of {"fixed", "moving"}, paths in the folder); labels
                  in labelsTr for imagesTr (labelsTs for imagesTs), keypoints or landmarks as .csv of voxels, counted
                  from 0, in keypointsTr or landmarksTr. As in Learn2Reg's own evaluation, both images of a pair lie on
                  one grid, whatever the moving header says.

Both of DIR-Lab's kinds are CT in raw files, whose grids DIR-Lab publishes as tables; the number of slices follows from
the size of the file.
"""

import json

import nibabel
import numpy as np

import pairs

# In-plane voxels and spacing in mm; slices are 2.5 mm apart.
DIRLAB_4DCT = {1: (256, 0.97), 2: (256, 1.16), 3: (256, 1.15), 4: (256, 1.13), 5: (256, 1.10),
               6: (512, 0.97), 7: (512, 0.97), 8: (512, 0.97), 9: (512, 0.97), 10: (512, 0.97)}
DIRLAB_COPD = {1: (512, 0.625), 2: (512, 0.645), 3: (512, 0.652), 4: (512, 0.590), 5: (512, 0.647),
               6: (512, 0.633), 7: (512, 0.625), 8: (512, 0.586), 9: (512, 0.664), 10: (512, 0.742)}
DIRLAB_SLICE_MM = 2.5


class UnknownLayout(Exception):
    """A folder that lacks what its layout asks for; the text says what."""


def prepare(folder, work):
    """The pairs of a folder in one of the layouts above, or those of INTRAWARP_TEST_DATA."""
    work.mkdir(parents=True, exist_ok=True)
    if any(folder.glob('Case*Pack')) or any(folder.glob('copd*')):
        yield from dirlab(folder, work)
    elif any(folder.glob('*_dataset.json')):
        yield from learn2reg(folder, work)
    else:
        yield from pairs.prepare(folder, work)


def only(folder, pattern):
    """The one file below a folder that matches."""
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise UnknownLayout(f'{folder}: {len(found)} files match {pattern}, not one')
    return found[0]


def raw_volume(source, target, size, spacing):
    """DIR-Lab's raw int16 as NIfTI, axes along LPS, and the affine map of its indices."""
    voxels = np.fromfile(source, dtype='<i2')
    if len(voxels) % size**2:
        raise UnknownLayout(f'{source}: {2 * len(voxels)} bytes are not whole slices of {size} x {size} int16')
    affine = np.diag([spacing, spacing, DIRLAB_SLICE_MM, 1])
    return pairs.write_lps(target, voxels.reshape(-1, size, size).T, affine), affine


def dirlab(folder, work):
    for number, grid in DIRLAB_4DCT.items():
        case = folder / f'Case{number}Pack'
        if case.exists():
            yield dirlab_pair(f'DIR-Lab 4DCT {number}', case, work, grid, ('*_T00*.img', '*_T50*.img'),
                              ('*_T00_xyz.txt', '*_T50_xyz.txt'))
    for number, grid in DIRLAB_COPD.items():
        case = folder / f'copd{number}'
        if case.exists():
            yield dirlab_pair(f'DIR-Lab COPDgene {number}', case, work, grid, ('*_iBHCT.img', '*_eBHCT.img'),
                              ('*_iBH_xyz*.txt', '*_eBH_xyz*.txt'))


def dirlab_pair(name, case, work, grid, images, landmarks):
    paths, points = [], []
    for role, image, landmark in zip(('fixed', 'moving'), images, landmarks):
        path, affine = raw_volume(only(case, image), work / f'{name.replace(" ", "_")}_{role}.nii.gz', *grid)
        paths.append(path)
        points.append(pairs.map_points(affine, np.loadtxt(only(case, landmark), ndmin=2)[:, :3] - 1))
    return pairs.Pair(name, 'ssd', *paths, fixed_points=points[0], moving_points=points[1])


def learn2reg(folder, work):
    description = json.loads(only(folder, '*_dataset.json').read_text(encoding='utf-8'))
    name = description.get('name', folder.name)
    one_modality = len(set(description.get('modality', {'0': ''}).values())) == 1
    for number, names in enumerate(description['registration_val']):
        fixed, moving = folder / names['fixed'], folder / names['moving']
        pair = pairs.Pair(f'{name} {number}', 'ssd' if one_modality else 'ngf', fixed,
                          on_grid_of(fixed, moving, work / f'{number}_moving.nii.gz'))
        labels = [beside(path, 'labels') for path in (fixed, moving)]
        if all(path.exists() for path in labels):
            pair.fixed_labels = labels[0]
            pair.moving_labels = on_grid_of(fixed, labels[1], work / f'{number}_moving_labels.nii.gz')
        for kind in ('keypoints', 'landmarks'):
            files = [beside(path, kind, '.csv') for path in (fixed, moving)]
            if all(path.exists() for path in files):
                affine = pairs.lps_affine(nibabel.load(fixed))
                pair.fixed_points, pair.moving_points = (
                    pairs.map_points(affine, np.loadtxt(path, delimiter=',', ndmin=2)) for path in files)
        yield pair


def beside(image, kind, suffix='.nii.gz'):
    """imagesTr/x.nii.gz -> labelsTr/x.nii.gz, and the like."""
    folder = image.parent.parent / image.parent.name.replace('images', kind)
    return folder / (image.name.removesuffix('.nii.gz') + suffix)


def on_grid_of(fixed, moving, target):
    """The moving file itself, or a copy under the header of the fixed one where they differ."""
    reference, image = nibabel.load(fixed), nibabel.load(moving)
    if reference.shape[:3] != image.shape[:3]:
        raise UnknownLayout(f'{moving}: {image.shape[:3]} voxels, unlike the fixed image')
    if np.allclose(reference.affine, image.affine, atol=1e-4):
        return moving
    return pairs.write_lps(target, np.asanyarray(image.dataobj), pairs.lps_affine(reference))
