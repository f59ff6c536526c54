# SPDX-License-Identifier: Apache-2.0
"""The registrations of tests/accuracy/run_verdicts: good and bad ones of stated kinds, each judged by its own truth.

The label of an entry follows from truth alone, and never from what the program says:
- a known map: good below two voxels of mean error over the body, where it has a counterpart;
- landmarks: good below a stated mean distance;
- labels: good when Dice is no more than 0.01 below the better of the start and of the affine stage;
- images without a common map (other anatomy, noise, mirrored, no tissue in common): never good.
"""

import dataclasses
import itertools
from typing import Callable

import nibabel
import numpy as np
from scipy import ndimage

import compare
import known_maps
import mappings
import measures
import methods
import pairs
import robustness
import robustness_cases

WAYS = {
    'default': None,  # the program's own choice
    'ffd nmi': ['--method=affine,ffd', '--metric=nmi'], 'ffd ssd': ['--method=affine,ffd', '--metric=ssd'],
    'ffd lncc': ['--method=affine,ffd', '--metric=lncc'], 'ffd ngf': ['--method=affine,ffd', '--metric=ngf'],
    'log-demons': ['--method=affine,log-demons'],
    'log-demons matched': ['--method=affine,log-demons', '--match_intensities'],
    'affine ssd': ['--method=affine', '--metric=ssd'], 'affine ngf': ['--method=affine', '--metric=ngf'],
    'affine nmi': ['--method=affine', '--metric=nmi'], 'affine lncc': ['--method=affine', '--metric=lncc'],
    'rigid ssd': ['--method=rigid', '--metric=ssd'], 'rigid ngf': ['--method=rigid', '--metric=ngf'],
}
DEFORMABLE = ('default', 'ffd nmi', 'ffd ssd', 'ffd lncc', 'ffd ngf', 'log-demons', 'log-demons matched')
FIRST_SEED = 100000  # apart from the seeds of tests/accuracy/robustness
DICE_MARGIN = 0.01
LABELLED_AXIS = 96  # voxels; labels keep their own grids
PLACES = 1000  # of a body, where the predicted error is held against the true one


@dataclasses.dataclass
class Task:
    """Files to register, more options, judge(answer) -> (good, figures), and the error that makes an answer bad.

    `places`: points of the fixed image and where they lie in the moving one, LPS mm; None without such a truth.
    """

    fixed: object
    moving: object
    judge: Callable
    options: list = dataclasses.field(default_factory=list)
    limit_mm: float = 5
    places: tuple | None = None


@dataclasses.dataclass
class Entry:
    """One registration; `make` writes its files into the folder it is given and returns the task."""

    key: str
    family: str
    way: str
    make: Callable


def never(_):
    return False, {}


def by_known_map(case):
    def judge(answer):
        errors = robustness.errors_of_answer(case, answer)
        return errors['mean_vox'] < robustness.GOOD_VOXELS, errors

    return judge


def by_landmarks(fixed, moving, limit):
    def judge(answer):
        errors = measures.distances(answer.mapping(fixed), moving)
        return errors['mean'] < limit, {f'{name}_mm': value for name, value in errors.items()}

    return judge


class Makers:
    """What entries are made from: cases with known maps, small volumes of the open images, and a command line."""

    def __init__(self, cases, command_line, data):
        self.cases = cases
        self.command_line = command_line
        self.data = data
        self._volumes = {}

    def volume(self, path, longest_axis=robustness_cases.LONGEST_AXIS):
        if path not in self._volumes:
            volume = known_maps.Volume.read(self.data / 'reg3d' / path)
            self._volumes[path] = known_maps.resampled(volume, longest_axis)
        return self._volumes[path]


def written(work, fixed, moving, judge, options=(), places=None):
    return Task(fixed.write(work / 'fixed.nii'), moving.write(work / 'moving.nii'), judge, list(options),
                robustness.GOOD_VOXELS * fixed.voxel_mm(), places)


def written_case(work, case, options=()):
    """A case with its known map as the truth, which is also the truth at some places of the body."""
    chosen = np.random.default_rng(1).choice(len(case.mapped), min(PLACES, len(case.mapped)), replace=False)
    return written(work, case.fixed, case.moving, by_known_map(case), options,
                   (case.points()[chosen], case.mapped[chosen]))


def known(makers, count=195):
    """Cases of tests/accuracy/robustness by each way in turn; the strongly bent ones by deformable ways alone."""
    ways, deformable = itertools.cycle(WAYS), itertools.cycle(DEFORMABLE)
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        kind = robustness_cases.kind_of(seed)
        way = next(deformable if kind in ('motion', 'combined') else ways)
        yield Entry(f'known/{seed}/{way}', f'known map, {kind}', way,
                    lambda work, seed=seed: known_task(makers, seed, work))


def known_task(makers, seed, work):
    case = makers.cases.make(seed)
    return written_case(work, case)


LIVER_STATES = {'dataset18': ('exhMaster', 'cyc_1_10', 'cyc_3_10'), 'dataset26': ('exhMaster', 'cyc_1_6', 'cyc_4_7')}
LANDMARK_LIMIT_MM = 5


def livers(makers):
    """Breathing states of two livers in every order, landmarks in the liver."""
    for subject, states in LIVER_STATES.items():
        for fixed, moving in itertools.permutations(states, 2):
            for way in (*DEFORMABLE, 'affine ngf'):
                yield Entry(f'liver/{subject}/{fixed}/{moving}/{way}', 'livers', way,
                            lambda work, names=(subject, fixed, moving): liver_task(makers, *names))


def liver_task(makers, subject, fixed, moving):
    folder = makers.data / 'reg3d/liver_4dmri_eth' / subject
    points = [pairs.read_csv_points(folder / f'{state}_landmarks_liver.csv') for state in (fixed, moving)]
    return Task(folder / f'{fixed}.nii.gz', folder / f'{moving}.nii.gz', by_landmarks(*points, LANDMARK_LIMIT_MM),
                places=points)


def labelled(makers, work):
    """The pairs of tests/accuracy/run with labels, their images coarser, and the hands with landmarks (2-D)."""
    families = itertools.chain(pairs.malf(makers.data, work), pairs.lapirn(makers.data, work),
                               pairs.prostate(makers.data, work), pairs.fair(makers.data, work))
    references = {}
    for pair in families:
        if pair.fixed_labels is None and pair.moving_points is None:
            continue
        for way in (*DEFORMABLE, 'affine ssd', 'affine ngf'):
            yield Entry(f'{pair.name}/{way}', 'pairs with labels, hands', way,
                        lambda work, pair=pair: labelled_task(makers, pair, work, references))


def labelled_task(makers, pair, work, references):
    if pair.fixed_labels is None:  # hands: the domain is 20 units wide
        return Task(pair.fixed, pair.moving, by_landmarks(pair.fixed_points, pair.moving_points, 1), limit_mm=1,
                    places=(pair.fixed_points, pair.moving_points))

    def dice_of(mapping):
        labels = methods.resample_nearest(nibabel.load(pair.fixed_labels), nibabel.load(pair.moving_labels), mapping)
        return compare.dice(pair, labels)

    def judge(answer):
        if pair.name not in references:
            affine = [affine_dice(makers, work, metric, dice_of) for metric in ('ssd', 'ngf')]
            references[pair.name] = max(dice_of(mappings.Affine(np.eye(4))), *affine)
        dice = dice_of(answer.mapping)
        return dice >= references[pair.name] - DICE_MARGIN, {'dice': dice, 'dice_reference': references[pair.name]}

    fixed, moving = (known_maps.resampled(known_maps.Volume.read(path), LABELLED_AXIS).write(work / f'{role}.nii')
                     for role, path in (('fixed', pair.fixed), ('moving', pair.moving)))
    return Task(fixed, moving, judge)


def affine_dice(makers, work, metric, dice_of):
    """Of the images that were written last."""
    answer = makers.command_line.register(work / 'fixed.nii', work / 'moving.nii',
                                          ['--method=affine', f'--metric={metric}'], work, dense=False)
    return dice_of(answer.mapping) if answer.mapping else 0


# Images by what they show; no two groups have anatomy in common.
ANATOMY = {
    'brain': ('brain_t1_lapirn/image_A_160x192x144.nii.gz', 'multimodal_chris/chris_t1.nii.gz',
              'templates_spm/avg152T2.nii.gz', 'brain_t1_claire/brain01.nii.gz', 'fair/brain3D_T.nii.gz'),
    'abdomen': ('abdomen_ct_totalseg/example_ct.nii.gz', 'liver_4dmri_eth/dataset18/exhMaster.nii.gz',
                'liver_4dmri_eth/dataset26/cyc_4_7.nii.gz'),
    'prostate': ('prostate_mr_deepreg/image0.nii.gz', 'prostate_mr_us/case000025_us_image.nii.gz'),
    'mouse heart': ('fair/mice3D_R.nii.gz',),
}


def unrelated(makers):
    """Each image of one kind of anatomy to each of another kind, by one way in turn."""
    ways = itertools.cycle([way for way in WAYS if way != 'affine lncc'])
    images = [(kind, path) for kind, paths in ANATOMY.items() for path in paths]
    for (kind, fixed), (other, moving) in itertools.permutations(images, 2):
        if kind == other:
            continue
        way = next(ways)
        yield Entry(f'unrelated/{fixed}/{moving}/{way}', 'other anatomy', way,
                    lambda work, paths=(fixed, moving): written(work, *map(makers.volume, paths), never))


NOISE = ('white', 'smooth')


def noise(makers):
    """Noise to noise, noise to images and images to noise."""
    ways = itertools.cycle(WAYS)
    for number, path in enumerate([paths[0] for paths in ANATOMY.values()] * 3):
        for kind in NOISE:
            for order in ('noise fixed', 'noise moving', 'noise to noise'):
                way = next(ways)
                yield Entry(f'noise/{number}/{kind}/{order}/{way}', 'noise', way,
                            lambda work, names=(number, path, kind, order): noise_task(makers, work, *names))


def noise_task(makers, work, number, path, kind, order):
    image = makers.volume(path)
    random = np.random.default_rng([7, number])

    def made():
        values = random.normal(100, 20, image.voxels.shape)
        if kind == 'smooth':
            values = 100 + 20 * known_maps.standardised(ndimage.gaussian_filter(values, 2))
        return dataclasses.replace(image, voxels=values)

    fixed, moving = (made() if order != 'noise moving' else image), (made() if order != 'noise fixed' else image)
    return written(work, fixed, moving, never)


def self_case(makers, path, random, bend_mm=6):
    """An image against itself, bent a little: a case to which something is then done."""
    source = makers.volume(path)
    bend = known_maps.Bumps.random(random, source, bend_mm)
    fixed = known_maps.noisy(known_maps.warped(source, bend), random, 0.01)
    body = np.flatnonzero(known_maps.body(fixed))
    case = robustness_cases.Case(0, '', path, 0, fixed, known_maps.noisy(source, random, 0.01), body,
                                 bend(fixed.points())[body])
    return case


def with_moving(case, matrix):
    """The moving image and its truth moved by a matrix."""
    return dataclasses.replace(case, moving=known_maps.moved(case.moving, matrix),
                               mapped=pairs.map_points(matrix, case.mapped))


SELF_IMAGES = (*ANATOMY['brain'][:3], *ANATOMY['abdomen'])


def turned(makers):
    """Headers turned by 60, 90 and 180 degrees, and voxels mirrored under an unchanged header."""
    ways = itertools.cycle(WAYS)
    for number, path in enumerate(SELF_IMAGES):
        for degrees, axis in itertools.product((60, 90, 180), range(3)):
            way = next(ways)
            yield Entry(f'turned/{path}/{degrees}/{axis}/{way}', 'turned by 60, 90, 180 degrees', way,
                        lambda work, names=(number, path, degrees, axis): turned_task(makers, work, *names))
        for axis in range(3):
            way = next(ways)
            yield Entry(f'mirrored/{path}/{axis}/{way}', 'mirrored', way,
                        lambda work, names=(number, path, axis): mirrored_task(makers, work, *names))


def turned_task(makers, work, number, path, degrees, axis):
    case = self_case(makers, path, np.random.default_rng([8, number, degrees, axis]))
    turn = known_maps.rotation_about(np.eye(3)[axis], degrees, case.moving.centre())
    case = with_moving(case, turn)
    return written_case(work, case)


def mirrored_task(makers, work, number, path, axis):
    case = self_case(makers, path, np.random.default_rng([9, number, axis]))
    mirrored = dataclasses.replace(case.moving, voxels=np.flip(case.moving.voxels, axis))
    return written(work, case.fixed, mirrored, never)


STARTS = ('turned 90', 'shifted 90 mm', 'flattened', 'mirrored', 'stretched 3')


def wrong_starts(makers):
    """A sound pair with a wrong initial transform, for one stage alone."""
    ways = itertools.cycle(['ffd', 'log-demons', 'affine'])
    for number, path in enumerate(SELF_IMAGES):
        for start in (*STARTS, 'true'):
            way = next(ways)
            yield Entry(f'start/{path}/{start}/{way}', f'initial transform, {"true" if start == "true" else "wrong"}',
                        f'{way} alone', lambda work, names=(number, path, start, way): start_task(makers, work, *names))
        next(ways)


def start_task(makers, work, number, path, start, way):
    random = np.random.default_rng([10, number])
    case = self_case(makers, path, random)
    known_move = known_maps.rotation_about(known_maps.random_direction(random), 20, case.moving.centre())
    case = with_moving(case, known_move)
    centre = case.fixed.centre()
    scale = {'flattened': [1, 1, 0.03], 'mirrored': [-1, 1, 1], 'stretched 3': [3, 1, 1]}.get(start, [1, 1, 1])
    change = np.eye(4)
    change[:3, :3] = np.diag(scale)
    change[:3, 3] = centre - change[:3, :3] @ centre
    if start == 'turned 90':
        change = known_maps.rotation_about([0, 0, 1], 90, centre)
    elif start == 'shifted 90 mm':
        change = known_maps.translation([90, 0, 0])
    matrix = work / 'initial.txt'
    np.savetxt(matrix, known_move @ change, fmt='%.9g')
    return written_case(work, case, [f'--method={way}', *(['--metric=ssd'] if way == 'affine' else []), f'--initial={matrix}'])


def without_counterpart(makers):
    """Halves of one image that share no tissue (never good), and large holes of other tissue (by the known map)."""
    ways = itertools.cycle([way for way in WAYS if way in DEFORMABLE] + ['affine ngf'])
    for number, path in enumerate(SELF_IMAGES):
        for axis in range(2):
            way = next(ways)
            yield Entry(f'halves/{path}/{axis}/{way}', 'no tissue in common', way,
                        lambda work, names=(number, path, axis): halves_task(makers, work, *names))
        for radius in (30, 45):
            way = next(ways)
            yield Entry(f'hole/{path}/{radius}/{way}', 'large resection', way,
                        lambda work, names=(number, path, radius): hole_task(makers, work, *names))


def halves_task(makers, work, number, path, axis):
    case = self_case(makers, path, np.random.default_rng([11, number]))
    fixed = known_maps.cropped(case.fixed, axis, 0.45, True)
    moving = known_maps.cropped(case.moving, axis, 0.45, False)
    return written(work, fixed, moving, never)


def hole_task(makers, work, number, path, radius):
    random = np.random.default_rng([12, number])
    case = self_case(makers, path, random)
    body = np.zeros(case.fixed.voxels.size, dtype=bool)
    body[case.indices] = True
    fixed, hole = known_maps.resected(case.fixed, random, body.reshape(case.fixed.voxels.shape), radius)
    kept = ~hole.ravel()[case.indices]
    case = dataclasses.replace(case, fixed=fixed, indices=case.indices[kept], mapped=case.mapped[kept])
    return written_case(work, case)


def wrong_metrics(makers):
    """SSD, log-demons and LNCC across modalities."""
    ways = itertools.cycle(['ffd ssd', 'log-demons', 'log-demons matched', 'affine ssd', 'ffd lncc', 'rigid ssd'])
    seed = FIRST_SEED + 50000
    for _ in range(42):
        while robustness_cases.kind_of(seed) not in ('inversion', 'modality'):
            seed += 1
        way = next(ways)
        yield Entry(f'metric/{seed}/{way}', 'metric that does not suit', way,
                    lambda work, seed=seed: known_task(makers, seed, work))
        seed += 1


def entries(makers, work):
    """All of them, in order of family; the order and the keys are the same in every run."""
    yield from known(makers)
    yield from turned(makers)
    yield from wrong_starts(makers)
    yield from without_counterpart(makers)
    yield from wrong_metrics(makers)
    yield from noise(makers)
    yield from unrelated(makers)
    yield from livers(makers)
    yield from labelled(makers, work)
