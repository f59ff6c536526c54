# SPDX-License-Identifier: Apache-2.0
"""The real image pairs, each prepared as NIfTI files with its known truth.

All matrices are 4x4, in LPS millimetres. A pair's data is only read; what has to be rewritten goes to a work folder.
"""

import csv
import dataclasses
import pathlib

import nibabel
import numpy as np

LPS_FROM_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclasses.dataclass
class Pair:
    """Two images and one kind of truth: landmarks, a known transform, or label maps; or only points to probe."""

    name: str
    metric: str  # ssd or ngf
    fixed: pathlib.Path
    moving: pathlib.Path
    unit: str = 'mm'
    # Points in the fixed image and, where it is known, where they lie in the moving image; LPS mm.
    fixed_points: np.ndarray | None = None
    moving_points: np.ndarray | None = None
    # The moving image is that of the pair of this name, moved by `known`: both results should say so.
    repeats: str = ''
    known: np.ndarray | None = None
    fixed_labels: pathlib.Path | None = None
    moving_labels: pathlib.Path | None = None
    # True where the headers are too far apart to start from, so that peers need a start from the centres of mass.
    far_apart: bool = False

    @property
    def is_2d(self):
        return nibabel.load(self.fixed).shape[2] == 1


def lps_affine(image):
    """Voxel index to LPS mm."""
    return LPS_FROM_RAS @ image.affine


def write_lps(path, voxels, affine_lps):
    image = nibabel.Nifti1Image(voxels, LPS_FROM_RAS @ affine_lps)
    image.set_sform(image.affine, code=1)
    image.set_qform(image.affine, code=1)
    image.header.set_xyzt_units('mm')
    nibabel.save(image, path)
    return path


def map_points(matrix, points):
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def plane_points(image, z):
    """The voxel centres of one plane, LPS mm, in the order of image[:, :, z].ravel()."""
    grid = np.stack(np.meshgrid(np.arange(image.shape[0]), np.arange(image.shape[1]), [z], indexing='ij'), -1)
    return map_points(lps_affine(image), grid.reshape(-1, 3).astype(float))


def body_points(image, count, seed):
    """Centres of random voxels brighter than the mean, LPS mm."""
    voxels = np.asanyarray(image.dataobj)
    indices = np.argwhere(voxels > voxels.mean())
    chosen = np.random.default_rng(seed).choice(len(indices), size=count, replace=False)
    return map_points(lps_affine(image), indices[chosen].astype(float))


def rotation(angles_degrees):
    x, y, z = np.radians(angles_degrees)
    rx = np.array([[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]])
    ry = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
    rz = np.array([[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]])
    return rz @ ry @ rx


def move_header(source, target, seed, max_degrees, max_scale, max_mm):
    """Writes `source` with its grid moved by a random map, voxels untouched, and returns the map (LPS).

    The map turns the image about its centre, scales it along its own axes and shifts it, so the moved grid stays
    orthogonal and nothing is interpolated.
    """
    image = nibabel.load(source)
    random = np.random.default_rng(seed)
    affine = lps_affine(image)
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    scale = 1 + random.uniform(-max_scale, max_scale, 3)
    linear = rotation(random.uniform(-max_degrees, max_degrees, 3)) @ directions @ np.diag(scale) @ directions.T
    centre = map_points(affine, (np.array(image.shape) - 1) / 2)
    known = np.eye(4)
    known[:3, :3] = linear
    known[:3, 3] = centre - linear @ centre + random.uniform(-max_mm, max_mm, 3)
    write_lps(target, np.asanyarray(image.dataobj), known @ affine)
    return known


def read_csv_points(path):
    with open(path, newline='') as file:
        return np.array([[float(row[axis]) for axis in 'xyz'] for row in csv.DictReader(file)])


def fair_image(path, picture, omega):
    """A FAIR picture as an nz = 1 image on FAIR's own domain: x to the right, y upwards, cell-centred."""
    rows, columns = picture.shape
    spacing = np.array([(omega[1] - omega[0]) / columns, (omega[3] - omega[2]) / rows, 1.0])
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = [omega[0] + spacing[0] / 2, omega[2] + spacing[1] / 2, 0]
    voxels = np.ascontiguousarray(picture[::-1].T)[:, :, np.newaxis]
    return write_lps(path, voxels, affine)


def fair(data, work):
    """Hands: X-rays with seven landmarks [xT yT xR yR]; MRIhead: T1 and T2, no truth."""
    for name, metric in (('hands', 'ssd'), ('MRIhead', 'ngf')):
        with np.load(data / f'reg2d/fair/{name}.npz') as source:
            fixed = fair_image(work / f'{name}_R.nii.gz', source['R'], source['omega'])
            moving = fair_image(work / f'{name}_T.nii.gz', source['T'], source['omega'])
            pair = Pair(f'fair {name} (2-D)', metric, fixed, moving)
            if 'LM' in source:
                landmarks = source['LM']
                flat = np.zeros((len(landmarks), 1))
                pair.fixed_points = np.hstack([landmarks[:, 2:4], flat])
                pair.moving_points = np.hstack([landmarks[:, 0:2], flat])
            else:
                pair.fixed_points = body_points(nibabel.load(fixed), 2000, seed=1)
            pair.unit = 'units of omega'
        yield pair


def liver(data, _):
    """Breathing states of two livers, landmarks inside the liver."""
    for subject, states in (('dataset18', ('cyc_1_10', 'cyc_3_10')), ('dataset26', ('cyc_1_6', 'cyc_4_7'))):
        folder = data / 'reg3d/liver_4dmri_eth' / subject
        for state in states:
            yield Pair(f'liver {subject} {state}', 'ssd', folder / 'exhMaster.nii.gz', folder / f'{state}.nii.gz',
                       fixed_points=read_csv_points(folder / 'exhMaster_landmarks_liver.csv'),
                       moving_points=read_csv_points(folder / f'{state}_landmarks_liver.csv'))


def malf(data, _):
    """Two skull-stripped T1 brains, cropped differently, 138 labels."""
    folder = data / 'reg3d/brain_t1_malf'
    yield Pair('brain_t1_malf 1000, 1001', 'ssd', folder / '1000_SS.nii.gz', folder / '1001_SS.nii.gz',
               fixed_labels=folder / '1000_glm.nii.gz', moving_labels=folder / '1001_glm.nii.gz', far_apart=True)


def lapirn(data, _):
    """Two T1 brains aligned before, 2 labels, each label map on the grid that its own header states."""
    folder = data / 'reg3d/brain_t1_lapirn'
    stem = 'image_{}_160x192x144'
    yield Pair('brain_t1_lapirn A, B', 'ssd',
               folder / f'{stem.format("A")}.nii.gz', folder / f'{stem.format("B")}.nii.gz',
               fixed_labels=folder / f'{stem.format("A")}_seg.nii.gz',
               moving_labels=folder / f'{stem.format("B")}_seg.nii.gz')


def prostate(data, _):
    """Prostate MR of two patients, gland labels; 32 slices."""
    folder = data / 'reg3d/prostate_mr_deepreg'
    yield Pair('prostate_mr_deepreg 0, 1', 'ssd', folder / 'image0.nii.gz', folder / 'image1.nii.gz',
               fixed_labels=folder / 'label0.nii.gz', moving_labels=folder / 'label1.nii.gz')


def templates(data, work):
    """MNI152 T1 and T2 share one grid; the T2 is moved by a known transform."""
    folder = data / 'reg3d/templates_spm'
    points = body_points(nibabel.load(folder / 'avg152T1.nii.gz'), 2000, seed=1)
    for seed in (1, 2, 3):
        moving = work / f'avg152T2_moved{seed}.nii.gz'
        known = move_header(folder / 'avg152T2.nii.gz', moving, seed, max_degrees=20, max_scale=0.15, max_mm=30)
        yield Pair(f'templates_spm T1, T2 moved {seed}', 'ngf', folder / 'avg152T1.nii.gz', moving,
                   fixed_points=points, moving_points=map_points(known, points))


def chris(data, work):
    """T1 and PD of one volunteer, once as they are and once with the PD moved.

    The headers do not align the two (registration finds 9 degrees between them), so they are not truth; but the second
    result has to repeat the first one.
    """
    folder = data / 'reg3d/multimodal_chris'
    fixed = folder / 'chris_t1.nii.gz'
    points = body_points(nibabel.load(fixed), 2000, seed=1)
    name = 'chris T1, PD'
    yield Pair(name, 'ngf', fixed, folder / 'chris_PD.nii.gz', fixed_points=points)
    moving = work / 'chris_PD_moved.nii.gz'
    known = move_header(folder / 'chris_PD.nii.gz', moving, seed=4, max_degrees=15, max_scale=0, max_mm=20)
    yield Pair(f'{name} moved', 'ngf', fixed, moving, fixed_points=points, repeats=name, known=known)


def prepare(data, work):
    """All pairs, in the order of the table."""
    work.mkdir(parents=True, exist_ok=True)
    for family in (fair, liver, malf, lapirn, prostate, templates, chris):
        yield from family(data, work)
