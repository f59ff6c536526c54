# SPDX-License-Identifier: Apache-2.0
"""Ways to register a pair: this server through its command line, elastix and plastimatch as they come with Debian.

Each returns an Outcome whose mapping takes fixed to moving points (mappings.py).
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import time

import nibabel
import numpy as np

import mappings
import pairs


class Failed(Exception):
    """A registration that ended without a result; the text is its reason."""


@dataclasses.dataclass
class Outcome:
    seconds: float
    mapping: object
    # For this server alone.
    transform: str = ''
    optimise_ms: float | None = None
    verdict: str = ''


def execute(command, log):
    """Runs to the end, output to `log`, and returns (seconds, stdout)."""
    started = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    log.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ['no message']
        raise Failed(f'exit {done.returncode}: {lines[-1]}')
    return seconds, done.stdout


def usable_cores():
    """How many cores this process and the programs that it starts may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def server(binaries, device, log):
    """A server of its own on free ports; yields its gRPC address and its device."""
    with open(log, 'w', encoding='utf-8') as file:
        process = subprocess.Popen([str(binaries / 'intrawarpd'), '--listen=127.0.0.1:0', '--http=127.0.0.1:0',
                                    f'--device={device}'], stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        words = dict(word.split('=', 1) for word in process.stdout.readline().split() if '=' in word)
        if 'grpc' not in words:
            raise Failed(f'the server did not become ready, see {log}')
        yield words['grpc'], words['device']
    finally:
        process.terminate()
        process.wait(timeout=30)


METHODS = ('auto', 'affine', 'ffd', 'log-demons', 'search', 'search,ffd')


class Intrawarp:
    """Registers, warps and maps points through a running server."""

    name = 'intrawarp'

    def __init__(self, binaries, address, method, options, no_affine=False):
        self._command = [binaries / 'intrawarp', f'--server={address}']
        self._method = method
        self._options = options
        self._no_affine = no_affine

    def register(self, pair, work):
        report, field = work / 'report.json', work / 'field.nii.gz'
        options = {'affine': [f'--metric={pair.metric}', '--method=affine'], 'auto': []}.get(
            self._method, [f'--method={"" if self._no_affine else "affine,"}{self._method}'])
        seconds, output = execute(
            [*self._command, 'register', f'--fixed={pair.fixed}', f'--moving={pair.moving}', *options, *self._options,
             f'--report={report}'], work / 'register.log')
        transform = output.split()[-1]
        values = json.loads(report.read_text())
        if self._method == 'affine':
            mapping = mappings.Affine(np.array(values['matrix'], dtype=float).reshape(4, 4))
        else:
            execute([*self._command, 'transform', 'get', transform, f'--out={field}'], work / 'field.log')
            mapping = mappings.Displacement.read(field)
        return Outcome(seconds, mapping, transform,
                       values['latency_ms']['optimise'],
                       values['verdict'] + (f' ({", ".join(values["reasons"])})' if values['reasons'] else ''))

    def warp_labels(self, outcome, pair, work):
        warped = work / 'labels.nii.gz'
        execute([*self._command, 'warp', f'--transform={outcome.transform}', f'--moving={pair.moving_labels}',
                 f'--like={pair.fixed_labels}', f'--out={warped}', '--interpolation=nearest'], work / 'warp.log')
        return np.asanyarray(nibabel.load(warped).dataobj).round().astype(int)

    def map_points(self, outcome, points, work):
        source, target = work / 'points.csv', work / 'mapped.csv'
        np.savetxt(source, points, fmt='%.9g', delimiter=',', header='x,y,z', comments='')
        execute([*self._command, 'points', f'--transform={outcome.transform}', f'--in={source}', f'--out={target}'],
                work / 'points.log')
        return pairs.read_csv_points(target)

    def forget(self, outcome, work):
        execute([*self._command, 'transform', 'delete', outcome.transform], work / 'delete.log')


class Peer:
    """The base of the peers, whose result is applied here."""

    def warp_labels(self, outcome, pair, _):
        fixed, moving = nibabel.load(pair.fixed_labels), nibabel.load(pair.moving_labels)
        return resample_nearest(fixed, moving, outcome.mapping)

    def map_points(self, outcome, points, _):
        return outcome.mapping(points)

    def forget(self, outcome, work):
        pass


def resample_nearest(fixed, moving, mapping):
    """Moving voxels on the grid of `fixed` through a map; 0 where there is no source."""
    to_index = np.linalg.inv(pairs.lps_affine(moving))
    voxels = np.asanyarray(moving.dataobj)
    out = np.zeros(fixed.shape, dtype=voxels.dtype)
    limits = np.array(voxels.shape)
    for z in range(fixed.shape[2]):
        index = np.floor(pairs.map_points(to_index, mapping(pairs.plane_points(fixed, z))) + 0.5).astype(int)
        inside = np.all((index >= 0) & (index < limits), axis=1)
        plane = np.zeros(len(index), dtype=voxels.dtype)
        plane[inside] = voxels[tuple(index[inside].T)]
        out[:, :, z] = plane.reshape(fixed.shape[:2])
    return out


ELASTIX = '''
(FixedInternalImagePixelType "float")
(MovingInternalImagePixelType "float")
(FixedImageDimension {dimension})
(MovingImageDimension {dimension})
(UseDirectionCosines "true")
(Registration "MultiResolutionRegistration")
(FixedImagePyramid "FixedSmoothingImagePyramid")
(MovingImagePyramid "MovingSmoothingImagePyramid")
(NumberOfResolutions 4)
(Interpolator "LinearInterpolator")
(ResampleInterpolator "FinalBSplineInterpolator")
(Resampler "DefaultResampler")
(Transform "AffineTransform")
(HowToCombineTransforms "Compose")
(AutomaticScalesEstimation "true")
(AutomaticTransformInitialization "{initialise}")
(AutomaticTransformInitializationMethod "CenterOfGravity")
(Metric "{metric}")
(NumberOfHistogramBins 32)
(Optimizer "AdaptiveStochasticGradientDescent")
(MaximumNumberOfIterations 500)
(ImageSampler "RandomCoordinate")
(NumberOfSpatialSamples 4096)
(NewSamplesEveryIteration "true")
(MaximumNumberOfSamplingAttempts 8)
(RandomSeed 121212)
(DefaultPixelValue 0)
(WriteResultImage "false")
(WriteTransformParametersEachIteration "false")
'''


class Elastix(Peer):
    """Affine, adaptive stochastic gradient descent; mean squares beside SSD, mutual information beside NGF."""

    name = 'elastix'

    def register(self, pair, work):
        fixed, moving = pair.fixed, pair.moving
        if pair.is_2d:
            fixed, moving = (write_metaimage_2d(work / f'{role}.mha', image)
                             for role, image in (('fixed', fixed), ('moving', moving)))
        parameters = work / 'elastix.txt'
        parameters.write_text(ELASTIX.format(
            dimension=2 if pair.is_2d else 3, initialise='true' if pair.far_apart else 'false',
            metric='AdvancedMeanSquares' if pair.metric == 'ssd' else 'AdvancedMattesMutualInformation'))
        seconds, _ = execute(['elastix', '-f', fixed, '-m', moving, '-out', work, '-p', parameters,
                              '-threads', usable_cores()], work / 'elastix.out')
        matrix = read_elastix(work / 'TransformParameters.0.txt', 2 if pair.is_2d else 3)
        return Outcome(seconds, mappings.Affine(matrix))


def write_metaimage_2d(path, source):
    """elastix takes no image that is one voxel thick; this writes its plane (axis-aligned in LPS) as MetaImage."""
    image = nibabel.load(source)
    affine = pairs.lps_affine(image)
    voxels = np.asanyarray(image.dataobj)[:, :, 0].astype(np.float32)
    header = {'ObjectType': 'Image', 'NDims': 2, 'BinaryData': True, 'BinaryDataByteOrderMSB': False,
              'TransformMatrix': '1 0 0 1', 'Offset': f'{affine[0, 3]:.17g} {affine[1, 3]:.17g}',
              'ElementSpacing': f'{affine[0, 0]:.17g} {affine[1, 1]:.17g}',
              'DimSize': f'{voxels.shape[0]} {voxels.shape[1]}', 'ElementType': 'MET_FLOAT',
              'ElementDataFile': 'LOCAL'}
    text = ''.join(f'{key} = {value}\n' for key, value in header.items())
    path.write_bytes(text.encode() + voxels.tobytes(order='F'))
    return path


def read_elastix(path, dimension):
    """T(x) = A (x - c) + c + t; the file lists A row by row, then t."""
    values = {}
    for line in path.read_text().splitlines():
        words = line.strip('()').split()
        if words and words[0] in ('TransformParameters', 'CenterOfRotationPoint'):
            values[words[0]] = np.array([float(word) for word in words[1:]])
    linear = values['TransformParameters'][:dimension**2].reshape(dimension, dimension)
    centre = values['CenterOfRotationPoint']
    matrix = np.eye(4)
    matrix[:dimension, :dimension] = linear
    matrix[:dimension, 3] = values['TransformParameters'][dimension**2:] + centre - linear @ centre
    return matrix


PLASTIMATCH = '''
[GLOBAL]
fixed={fixed}
moving={moving}
xform_out={xform}
{align}
[STAGE]
xform=affine
optim=rsg
impl=itk
metric={metric}
res=4 4 2
max_its=100
[STAGE]
xform=affine
optim=rsg
impl=itk
metric={metric}
res=2 2 1
max_its=100
'''

ALIGN_CENTRES = '''
[STAGE]
xform=align_center
'''


class Plastimatch(Peer):
    """Affine, regular-step gradient descent; mean squares beside SSD, Mattes mutual information beside NGF."""

    name = 'plastimatch'

    def register(self, pair, work):
        if pair.is_2d:
            raise Failed('3-D images only')
        xform, parameters = work / 'xform.txt', work / 'plastimatch.txt'
        parameters.write_text(PLASTIMATCH.format(
            fixed=pair.fixed, moving=pair.moving, xform=xform, align=ALIGN_CENTRES if pair.far_apart else '',
            metric='mse' if pair.metric == 'ssd' else 'mattes'))
        seconds, _ = execute(['plastimatch', 'register', parameters], work / 'plastimatch.log')
        return Outcome(seconds, mappings.Affine(read_itk_affine(xform)))


def read_itk_affine(path):
    """ITK's text form of an affine transform: A row by row and t, about a fixed centre."""
    values = {}
    for line in path.read_text().splitlines():
        key, _, rest = line.partition(':')
        values[key] = rest.split()
    numbers = np.array([float(word) for word in values['Parameters']])
    centre = np.array([float(word) for word in values['FixedParameters']])
    matrix = np.eye(4)
    matrix[:3, :3] = numbers[:9].reshape(3, 3)
    matrix[:3, 3] = numbers[9:] + centre - matrix[:3, :3] @ centre
    return matrix


def find_binaries(folder):
    folder = pathlib.Path(folder)
    for name in ('intrawarpd', 'intrawarp'):
        if not (folder / name).exists():
            raise Failed(f'{folder / name} does not exist')
    return folder
