#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Maps the same points by every way that a result can take, and prints how far each way is from the server's own answer.

    tests/accuracy/point_paths.py --bin=DIR [--fixed=PATH --moving=PATH] [--methods="affine,ffd affine,log-demons"]
        [--points=10000] [--device=cpu] [--out=DIR]

--bin is the folder with intrawarpd and intrawarp. Without --fixed and --moving a liver of INTRAWARP_TEST_DATA is
registered. Both headers are turned by one oblique rotation, so that a reader that ignores the direction shows. The
points lie at random between the outermost voxel centres of the fixed image. Distances are in mm. --out
(build/point_paths) receives table.md and the files.

The ways by ITK need transformix (Debian's package elastix) and are left out where it is not installed; the ways by
Slicer's logic run on VTK with the stand-ins of tests/client/slicer.
"""

import argparse
import gzip
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('client/python/src', 'client/slicer/Intrawarp', 'tests/client/slicer')]

import intrawarp
import methods
import mrml
from IntrawarpLib.grid_transform import TransformChain, strides_for
from IntrawarpLib.registration import LIVE_NODES

PAIR = ('reg3d/liver_4dmri_eth/dataset18/exhMaster.nii.gz', 'reg3d/liver_4dmri_eth/dataset18/cyc_1_10.nii.gz')


def turned(path):
    """The image under a header that is turned about the origin."""
    image = intrawarp.Image.read(path)
    turn = Rotation.from_euler('xyz', (20, -35, 50), degrees=True).as_matrix()
    geometry = image.geometry
    return intrawarp.Image(image.array, axes='zyx', space='LPS', spacing_xyz=geometry.spacing_xyz,
                           origin_xyz=turn @ geometry.origin_xyz,
                           direction_xyz=turn @ np.reshape(geometry.direction_xyz, (3, 3)))


def trilinear(vectors_zyx, index_xyz):
    """Vectors (z, y, x, 3) at indices (N, 3), float64, the nearest sample's outside."""
    return np.stack([ndimage.map_coordinates(vectors_zyx[..., axis].astype(float), index_xyz.T[::-1], order=1,
                                             mode='nearest') for axis in range(3)], axis=1)


# ---- the command line ----

class CommandLine:
    """`intrawarp`, with the C++ client below it."""

    def __init__(self, program, address, work):
        self._base = [str(program), f'--server={address}']
        self._work = work

    def run(self, *arguments):
        subprocess.run([*self._base, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def get(self, transform, file_name, *options):
        path = self._work / file_name
        self.run('transform', 'get', transform, f'--out={path}', *options)
        return path

    def points(self, transform, points):
        given, mapped = self._work / 'points.csv', self._work / 'mapped.csv'
        np.savetxt(given, points, delimiter=',', header='x,y,z', comments='', fmt='%.17g')
        self.run('points', f'--transform={transform}', f'--in={given}', f'--out={mapped}')
        return np.loadtxt(mapped, delimiter=',', skiprows=1)


# ---- Slicer's logic on VTK ----

def by_slicer(field, affine, points):
    chain = TransformChain(mrml.LinearTransformNode('affine'), mrml.GridTransformNode('grid'),
                           mrml.OrientedGridTransform())
    chain.update(field, affine)
    ras = points * (-1, -1, 1)
    return np.array([chain.linear_node.from_world(point) for point in ras]) * (-1, -1, 1)


# ---- ITK, through transformix ----

TRANSFORMIX = '''(FixedImageDimension 3)
(MovingImageDimension 3)
(FixedInternalImagePixelType "float")
(MovingInternalImagePixelType "float")
(Size {size})
(Index 0 0 0)
(Spacing {spacing})
(Origin {origin})
(Direction {direction})
(UseDirectionCosines "true")
(HowToCombineTransforms "Compose")
(InitialTransformParametersFileName "{initial}")
(ResampleInterpolator "FinalBSplineInterpolator")
(Resampler "DefaultResampler")
(ResultImageFormat "mhd")
(ResultImagePixelType "float")
'''


def words(values):
    return ' '.join(f'{value:.17g}' for value in np.ravel(values))


class Transformix:
    """Points through a file of parameters of elastix, whose transforms are ITK's."""

    def __init__(self, geometry, work):
        self._header = dict(size=' '.join(map(str, geometry.size_xyz)), spacing=words(geometry.spacing_xyz),
                            origin=words(geometry.origin_xyz),
                            direction=words(np.reshape(geometry.direction_xyz, (3, 3)).T))
        self._work = work / 'transformix'
        self._work.mkdir(exist_ok=True)

    def parameters(self, name, text, initial='NoInitialTransform'):
        path = self._work / f'{name}.txt'
        path.write_text(text + TRANSFORMIX.format(initial=initial, **self._header))
        return path

    def points(self, parameters, points):
        given = self._work / 'points.txt'
        given.write_text(f'point\n{len(points)}\n' + '\n'.join(words(point) for point in points) + '\n')
        methods.execute(['transformix', '-def', given, '-out', self._work, '-tp', parameters, '-threads', 2],
                        self._work / 'log')
        lines = (self._work / 'outputpoints.txt').read_text().splitlines()
        return np.array([[float(word) for word in line.split('OutputPoint = [')[1].split(']')[0].split()]
                         for line in lines])

    def by_field(self, path, points):
        return self.points(self.parameters('field', '(Transform "DeformationFieldTransform")\n(NumberOfParameters 0)\n'
                                           f'(DeformationFieldFileName "{path.resolve()}")\n'
                                           '(DeformationFieldInterpolationOrder 1)\n'), points)

    def by_transform_file(self, path, points):
        """ITK's text file (.tfm) of a composite: the last transform of the file maps first."""
        blocks = [dict(line.split(': ', 1) for line in block.splitlines() if ': ' in line)
                  for block in path.read_text().split('#Transform')]
        initial = 'NoInitialTransform'
        for at, block in enumerate(reversed([block for block in blocks if 'Parameters' in block])):
            kind, parameters = block['Transform'].split('_')[0], block['Parameters']
            fixed = np.array(block['FixedParameters'].split(), dtype=float)
            text = f'(NumberOfParameters {len(parameters.split())})\n(TransformParameters {parameters})\n'
            if kind == 'BSplineTransform':
                text += (f'(Transform "BSplineTransform")\n(BSplineTransformSplineOrder 3)\n'
                         f'(UseCyclicTransform "false")\n(GridSize {" ".join(str(int(n)) for n in fixed[:3])})\n'
                         f'(GridIndex 0 0 0)\n(GridOrigin {words(fixed[3:6])})\n(GridSpacing {words(fixed[6:9])})\n'
                         f'(GridDirection {words(fixed[9:].reshape(3, 3).T)})\n')
            else:
                text += f'(Transform "AffineTransform")\n(CenterOfRotationPoint {words(fixed)})\n'
            initial = self.parameters(f'itk_{at}', text, initial).resolve()
        return self.points(initial, points)


# ---- a reader of NRRD of our own ----

def by_nrrd(path, points):
    header, data = path.read_bytes().split(b'\n\n', 1)
    keys = dict(line.split(':', 1) for line in header.decode().splitlines() if ':' in line and line[0] != '#')
    keys = {key: value.lstrip('=').strip() for key, value in keys.items()}
    assert keys['type'] == 'float' and keys['endian'] == 'little' and keys['space'] == 'left-posterior-superior'
    assert keys['kinds'].split()[0] == 'vector', 'the components run fastest'
    if keys['encoding'] == 'gzip':
        data = gzip.decompress(data)
    size = [int(word) for word in keys['sizes'].split()]
    vectors = np.frombuffer(data, '<f4').reshape(*reversed(size[1:]), 3)

    def triples(text):
        return [[float(word) for word in part.strip('()').split(',')] for part in text.split() if part != 'none']
    axes = np.array(triples(keys['space directions'])).T
    index = (points - triples(keys['space origin'])[0]) @ np.linalg.inv(axes).T
    return points + trilinear(vectors, index)


# ---- DICOM ----

def write_series(folder, image, number):
    """A series of one file a slice; each series has a frame of reference of its own."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    folder.mkdir(exist_ok=True)
    geometry = image.geometry
    direction = np.reshape(geometry.direction_xyz, (3, 3))
    root = '2.25.3030'
    for k, voxels in enumerate(image.array):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = '1.2.840.10008.5.1.4.1.1.4'
        meta.MediaStorageSOPInstanceUID = f'{root}.{number}.{k + 1}'
        meta.TransferSyntaxUID = '1.2.840.10008.1.2.1'
        file = FileDataset('', {}, file_meta=meta, preamble=b'\0' * 128, is_little_endian=True, is_implicit_VR=False)
        file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        file.StudyInstanceUID, file.SeriesInstanceUID = f'{root}.1', f'{root}.{number}'
        file.FrameOfReferenceUID = f'{root}.9{number}'
        file.PatientID, file.PatientName, file.Modality = 'POINTS', 'Points^Of', 'MR'
        file.PatientBirthDate = file.PatientSex = file.StudyID = file.AccessionNumber = ''
        file.StudyDate, file.StudyTime, file.ReferringPhysicianName = '20260101', '120000', ''
        file.SeriesNumber, file.InstanceNumber = number, k + 1
        file.Rows, file.Columns = voxels.shape
        file.PixelSpacing = [f'{geometry.spacing_xyz[axis]:.10g}' for axis in (1, 0)]
        file.SliceThickness = geometry.spacing_xyz[2]
        file.ImageOrientationPatient = [f'{value:.10f}' for value in (*direction[:, 0], *direction[:, 1])]
        file.ImagePositionPatient = [f'{value:.8f}' for value in geometry.index_to_physical([0, 0, k])]
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, 'MONOCHROME2'
        file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 1
        file.PixelData = np.ascontiguousarray(voxels, dtype='<i2').tobytes()
        file.save_as(folder / f'{k:03d}.dcm', write_like_original=False)
    return folder


def by_dicom(path, points):
    """A Deformable Spatial Registration as PS3.3 C.20.3 defines it: matrix, then grid, then matrix."""
    import pydicom
    made = pydicom.dcmread(path)
    item = next(item for item in made.DeformableRegistrationSequence
                if 'DeformableRegistrationGridSequence' in item)

    def matrix(name):
        sequence = item.get(name)
        if not sequence:
            return np.eye(4)
        return np.array([float(value) for value in sequence[0].FrameOfReferenceTransformationMatrix]).reshape(4, 4)
    before, after = (matrix(f'{when}DeformationMatrixRegistrationSequence') for when in ('Pre', 'Post'))
    grid = item.DeformableRegistrationGridSequence[0]
    row, column = np.array([float(value) for value in grid.ImageOrientationPatient]).reshape(2, 3)
    axes = np.stack([row, column, np.cross(row, column)], axis=1) * [float(value) for value in grid.GridResolution]
    size = [int(value) for value in grid.GridDimensions]
    vectors = np.frombuffer(grid.VectorGridData, '<f4').reshape(*reversed(size), 3)
    at = points @ before[:3, :3].T + before[:3, 3]
    origin = np.array([float(value) for value in grid.ImagePositionPatient])
    moved = at + trilinear(vectors, (at - origin) @ np.linalg.inv(axes).T)
    return moved @ after[:3, :3].T + after[:3, 3]


# ---- the table ----

def ways(result, fixed, line, points, work):
    """(way, mapped points, which of the points count)"""
    everywhere = np.ones(len(points), bool)
    is_spline = result.load().kind == intrawarp.v1.TRANSFORM_KIND_CONTROL_GRID
    yield 'Python, `server.map_points`, called again', result.map_points(points), everywhere
    yield 'command line, `intrawarp points` (C++ client)', line.points(result.name, points), everywhere
    exact = 'control' if is_spline else 'velocity'
    for encoding in (exact, 'float32', 'float16', 'int16'):
        yield f'Python, `Field.map_points`, {encoding}', result.field(encoding).map_points(points), everywhere
    for stride in (1, strides_for(fixed, LIVE_NODES), 4):
        field = result.field('float32', stride=stride)
        index = field.geometry.physical_to_index(points)
        within = ((index >= 0) & (index <= np.array(field.geometry.size_xyz) - 1)).all(axis=1)
        if stride == 1:
            whole = field
        else:
            yield f'Python, `Field.map_points`, float32, stride {stride}', field.map_points(points), everywhere
        mapped = by_slicer(field, result.affine, points)
        yield f"Slicer's logic, stride {stride}", mapped, everywhere
        if not within.all():
            yield f"Slicer's logic, stride {stride}, within the outermost samples", mapped, within
    whole.write(work / 'field.nrrd')
    yield '`Field.write` to .nrrd, own reader', by_nrrd(work / 'field.nrrd', points), everywhere
    yield '`Field.write` to .nrrd, sent by `intrawarp points`', line.points(work / 'field.nrrd', points), everywhere
    if shutil.which('transformix'):
        itk = Transformix(fixed, work)
        for suffix in ('.nii.gz', '.nrrd', '.mha'):
            whole.write(work / f'field{suffix}')
            yield f'ITK, field from `Field.write`, {suffix}', itk.by_field(work / f'field{suffix}', points), everywhere
        if is_spline:
            yield ("ITK, B-spline and affine of `transform get --out=X.tfm`",
                   itk.by_transform_file(line.get(result.name, 'grid.tfm'), points), everywhere)
    if is_spline:
        for suffix in ('.tfm', '.h5'):
            path = line.get(result.name, f'grid{suffix}')
            yield f'`transform get --out=X{suffix}`, sent by `intrawarp points`', line.points(path, points), everywhere
    path = line.get(result.name, 'registration.dcm', f'--fixed={work / "series_1"}', f'--moving={work / "series_2"}')
    yield 'DICOM registration, pydicom and numpy', by_dicom(path, points), everywhere
    yield 'DICOM registration, sent by `intrawarp points`', line.points(path, points), everywhere


def table(server, line, fixed, moving, method, count, work):
    result = server.register(fixed, moving, method=method)
    size = np.array(fixed.geometry.size_xyz)
    index = np.random.default_rng(27).uniform(0, size - 1, (count, 3))
    points = fixed.geometry.index_to_physical(index)
    there = result.map_points(points)
    moved = np.linalg.norm(there - points, axis=1)
    yield (f'{method}: {count} points of {" x ".join(map(str, size))} voxels, moved by {moved.mean():.1f} mm on '
           f'average and {moved.max():.1f} mm at most; verdict {result.verdict}')
    yield ''
    yield '| way | largest, mm | mean, mm | points |'
    yield '|---|---|---|---|'
    for way, mapped, which in ways(result, fixed.geometry, line, points, work):
        apart = np.linalg.norm(mapped - there, axis=1)[which]
        yield f'| {way} | {apart.max():.2g} | {apart.mean():.2g} | {which.sum()} |'
    yield ''


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bin', required=True, type=pathlib.Path)
    parser.add_argument('--fixed', type=pathlib.Path)
    parser.add_argument('--moving', type=pathlib.Path)
    parser.add_argument('--methods', default='affine,ffd affine,log-demons')
    parser.add_argument('--points', type=int, default=10000)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/point_paths'))
    arguments = parser.parse_args()
    if arguments.fixed is None or arguments.moving is None:
        if 'INTRAWARP_TEST_DATA' not in os.environ:
            parser.error('give --fixed and --moving, or INTRAWARP_TEST_DATA')
        arguments.fixed, arguments.moving = (pathlib.Path(os.environ['INTRAWARP_TEST_DATA']) / name for name in PAIR)
    return arguments


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    fixed, moving = turned(arguments.fixed), turned(arguments.moving)
    for number, image in enumerate((fixed, moving), start=1):
        write_series(arguments.out / f'series_{number}', image, number)
    binaries = methods.find_binaries(arguments.bin)
    with methods.server(binaries, arguments.device, arguments.out / 'server.log') as (address, _), \
            intrawarp.connect(address) as server, open(arguments.out / 'table.md', 'w', encoding='utf-8') as file:
        line = CommandLine(binaries / 'intrawarp', address, arguments.out)
        for method in arguments.methods.split():
            for text in table(server, line, fixed, moving, method, arguments.points, arguments.out):
                print(text, flush=True)
                print(text, file=file)
    return 0


if __name__ == '__main__':
    sys.exit(main())
