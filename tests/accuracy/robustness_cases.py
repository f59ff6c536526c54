# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/accuracy/robustness: each seed is one pair with a known map, made from nothing but its number.

A pair is made of the phantom of `intrawarp phantom` or of one open image, resampled to at most 72 voxels an axis.
"""

import dataclasses
import pathlib

import numpy as np

import known_maps
import mappings
import methods
import pairs

# Seeds go round this list, so that motion, turns, shifts and all of them together weigh twice.
CYCLE = ('motion', 'rotation', 'shift', 'crop', 'gamma', 'inversion', 'motion', 'rotation',
         'bias', 'noise', 'resection', 'combined', 'gain', 'modality', 'shift', 'combined')

# The number that a kind of case is ordered by: its unit and its range.
AMPLITUDES = {
    'motion': ('mm, largest', 10, 60), 'rotation': ('degrees', 0, 180), 'shift': ('mm', 0, 80),
    'combined': ('mm, largest', 5, 45), 'crop': ('% cut off one axis', 0, 60), 'resection': ('mm, radius', 8, 35),
    'noise': ('% of the range', 0, 40), 'bias': ('largest log gain', 0, 1),
    'gamma': ('log2 of the exponent, either sign', 0, 1.5), 'gain': ('log2 of the gain, either sign', 0, 1.5),
    'inversion': ('mm, largest', 5, 12), 'modality': ('mm, largest', 5, 12),
}
UNLIKE = ('gamma', 'inversion', 'bias', 'modality')

LONGEST_AXIS = 72
OPEN_IMAGES = {
    'abdomen CT': 'abdomen_ct_totalseg/example_ct.nii.gz', 'liver MR': 'liver_4dmri_eth/dataset18/exhMaster.nii.gz',
    'head T1': 'multimodal_chris/chris_t1.nii.gz', 'brain T1': 'brain_t1_lapirn/image_A_160x192x144.nii.gz',
    'skull-stripped T1': 'brain_t1_malf/1000_SS.nii.gz', 'Colin27 T1': 'templates_spm/single_subj_T1.nii.gz',
}
TEMPLATES = {name: f'templates_spm/avg152{name}.nii.gz' for name in ('T1', 'T2', 'PD')}
PHANTOM_SHARE = 0.35


@dataclasses.dataclass
class Case:
    """A pair, and where each voxel of the fixed image's body that has a counterpart lies in the moving image."""

    seed: int
    kind: str
    source: str
    amplitude: float
    fixed: known_maps.Volume
    moving: known_maps.Volume
    indices: np.ndarray  # into fixed.voxels.ravel()
    mapped: np.ndarray  # LPS mm, one row for each index

    def points(self):
        return self.fixed.points()[self.indices]


@dataclasses.dataclass
class Settings:
    """What a case is made of, drawn before any image is read."""

    kind: str
    amplitude: float
    deformation_mm: float = 10
    degrees: float = 0
    shift_mm: float = 10


def kind_of(seed):
    return CYCLE[seed % len(CYCLE)]


def draw(kind, random):
    """The amplitude of a case and what goes with it; mild motion goes with everything."""
    mild = Settings(kind, 0, random.uniform(5, 12), random.uniform(0, 10), random.uniform(0, 10))
    if kind in ('inversion', 'modality'):
        mild.amplitude = mild.deformation_mm
        return mild
    _, low, high = AMPLITUDES[kind]
    mild.amplitude = random.uniform(low, high)
    if kind in ('motion', 'combined'):
        mild.deformation_mm = mild.amplitude
    if kind == 'combined':
        mild.degrees, mild.shift_mm = random.uniform(0, 30), random.uniform(0, 40)
    elif kind == 'rotation':
        mild.degrees, mild.deformation_mm = mild.amplitude, 5
    elif kind == 'shift':
        mild.shift_mm, mild.deformation_mm = mild.amplitude, 5
    return mild


class Cases:
    """Makes cases. `phantom` is the command that makes phantoms, `work` a folder of its own; `data` None: phantoms."""

    def __init__(self, phantom, data, work):
        self._phantom = phantom
        self._data = data
        self._work = work
        self._read = {}

    def make(self, seed):
        random = np.random.default_rng([20261122, seed])
        kind = kind_of(seed)
        settings = draw(kind, random)
        phantom = kind != 'modality' and random.uniform() < PHANTOM_SHARE
        if self._data is None or phantom:
            name, fixed, moving, mapped, body = self._of_phantom(seed, settings)
        else:
            name, fixed, moving, mapped, body = self._of_image(settings, random)
        rigid = (known_maps.translation(settings.shift_mm * known_maps.random_direction(random))
                 @ known_maps.rotation_about(known_maps.random_direction(random), settings.degrees, moving.centre()))
        case = Case(seed, kind, name, settings.amplitude, fixed, known_maps.moved(moving, rigid),
                    np.flatnonzero(body), pairs.map_points(rigid, mapped[body.ravel()]))
        return _without_outside(_changed(case, settings, random))

    def _of_phantom(self, seed, settings):
        folder = self._work / 'phantom'
        methods.execute([*self._phantom, f'--out={folder}', '--size=72x72x54', '--spacing=4.4444',
                         f'--seed={seed % 50}', f'--amplitude_mm={settings.deformation_mm:.6g}'],
                        self._work / 'phantom.log')
        fixed = known_maps.Volume.read(folder / 'fixed.nii.gz')
        points = fixed.points()
        field = mappings.Displacement.read(folder / 'field.nii.gz')
        moving = known_maps.Volume.read(folder / 'moving.nii.gz')
        if settings.kind == 'modality':
            moving = known_maps.inverted(moving)
        body = known_maps.Volume.read(folder / 'mask.nii.gz').voxels > 0
        return 'phantom', fixed, moving, field(points), body

    def _of_image(self, settings, random):
        if settings.kind == 'modality':
            first, second = random.permutation(list(TEMPLATES))[:2]
            name = f'template {first} to {second}'
            source, moving = self._image(TEMPLATES[first]), self._image(TEMPLATES[second])
        else:
            name = list(OPEN_IMAGES)[random.integers(len(OPEN_IMAGES))]
            source = moving = self._image(OPEN_IMAGES[name])
        deformation = known_maps.Bumps.random(random, source, settings.deformation_mm)
        fixed = known_maps.warped(source, deformation)
        return name, fixed, moving, deformation(fixed.points()), known_maps.body(fixed)

    def _image(self, path):
        if path not in self._read:
            volume = known_maps.Volume.read(self._data / 'reg3d' / pathlib.Path(path))
            self._read[path] = known_maps.resampled(volume, LONGEST_AXIS)
        return self._read[path]


def _changed(case, settings, random):
    """The change of intensity, the cut or the hole of its kind, and noise of 1 % on both images."""
    fixed, moving, amplitude = case.fixed, case.moving, settings.amplitude
    sign = random.choice([-1, 1])
    if case.kind == 'gamma':
        moving = known_maps.gamma(moving, 2 ** (sign * amplitude))
    elif case.kind == 'inversion':
        moving = known_maps.inverted(moving)
    elif case.kind == 'bias':
        moving = known_maps.biased(moving, random, amplitude)
    elif case.kind == 'gain':
        moving = known_maps.gained(moving, 2 ** (sign * amplitude), random.uniform(-0.3, 0.3))
    elif case.kind == 'crop':
        moving = known_maps.cropped(moving, random.integers(3), 1 - amplitude / 100, sign > 0)
    elif case.kind == 'resection':
        body = np.zeros(fixed.voxels.size, dtype=bool)
        body[case.indices] = True
        fixed, hole = known_maps.resected(fixed, random, body.reshape(fixed.voxels.shape), amplitude)
        kept = ~hole.ravel()[case.indices]
        case = dataclasses.replace(case, indices=case.indices[kept], mapped=case.mapped[kept])
    noise = amplitude / 100 if case.kind == 'noise' else 0.01
    return dataclasses.replace(case, fixed=known_maps.noisy(fixed, random, noise),
                               moving=known_maps.noisy(moving, random, noise))


def _without_outside(case):
    inside = case.moving.contains(case.mapped)
    return dataclasses.replace(case, indices=case.indices[inside], mapped=case.mapped[inside])
