# SPDX-License-Identifier: Apache-2.0
"""Peers that end with a B-spline: NiftyReg, elastix and plastimatch, each with its defaults or usual settings."""

import os
import pathlib

import numpy as np

import mappings
import methods


def available():
    """The peers of this machine."""
    peers = [Elastix(), Plastimatch()]
    folder = os.environ.get('NIFTYREG_BIN')
    return [NiftyReg(pathlib.Path(folder)), *peers] if folder else peers


class NiftyReg(methods.Peer):
    """reg_aladin, then reg_f3d: NMI, control points every 5 voxels, 3 levels, all by default."""

    name = 'NiftyReg'

    def __init__(self, binaries):
        self._binaries = binaries

    def register(self, pair, work):
        affine, grid, field = work / 'affine.txt', work / 'grid.nii.gz', work / 'field.nii.gz'
        images = ['-ref', pair.fixed, '-flo', pair.moving]
        start = ['-comi'] if pair.far_apart else []
        seconds = methods.execute([self._binaries / 'reg_aladin', *images, '-aff', affine, '-res',
                                   work / 'affine.nii.gz', *start], work / 'aladin.log')[0]
        seconds += methods.execute([self._binaries / 'reg_f3d', *images, '-aff', affine, '-cpp', grid, '-res',
                                    work / 'warped.nii.gz'], work / 'f3d.log')[0]
        methods.execute([self._binaries / 'reg_transform', '-ref', pair.fixed, '-disp', grid, field],
                        work / 'transform.log')
        return methods.Outcome(seconds, mappings.Displacement.read(field, ras=True))


ELASTIX_BSPLINE = '''
(FixedInternalImagePixelType "float")
(MovingInternalImagePixelType "float")
(UseDirectionCosines "true")
(Registration "MultiResolutionRegistration")
(FixedImagePyramid "FixedSmoothingImagePyramid")
(MovingImagePyramid "MovingSmoothingImagePyramid")
(NumberOfResolutions 4)
(Interpolator "LinearInterpolator")
(ResampleInterpolator "FinalBSplineInterpolator")
(Resampler "DefaultResampler")
(Transform "BSplineTransform")
(FinalGridSpacingInPhysicalUnits {spacing})
(GridSpacingSchedule 8 4 2 1)
(HowToCombineTransforms "Compose")
(Metric "AdvancedMattesMutualInformation")
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
'''


class Elastix(methods.Peer):
    """Affine, then B-spline, both by mutual information, 4 levels; 10 mm between control points, 16 mm on the liver."""

    name = 'elastix'

    def register(self, pair, work):
        if pair.is_2d:
            raise methods.Failed('3-D images only')
        affine, bspline = work / 'affine.txt', work / 'bspline.txt'
        affine.write_text(methods.ELASTIX.format(dimension=3, initialise='true' if pair.far_apart else 'false',
                                                 metric='AdvancedMattesMutualInformation'))
        bspline.write_text(ELASTIX_BSPLINE.format(spacing=16 if 'liver' in pair.name else 10))
        threads = ['-threads', methods.usable_cores()]
        seconds, _ = methods.execute(['elastix', '-f', pair.fixed, '-m', pair.moving, '-out', work, '-p', affine, '-p',
                                      bspline, *threads], work / 'elastix.out')
        methods.execute(['transformix', '-def', 'all', '-out', work, '-tp', work / 'TransformParameters.1.txt',
                         *threads], work / 'transformix.out')
        return methods.Outcome(seconds, read_metaimage_field(work / 'deformationField.mhd'))


def read_metaimage_field(path):
    """transformix writes float32 vectors as .mhd and .raw."""
    header = dict(line.split(' = ', 1) for line in path.read_text().splitlines())
    size = [int(word) for word in header['DimSize'].split()]
    numbers = np.fromfile(path.parent / header['ElementDataFile'], dtype=np.float32)
    vectors = numbers.reshape(*reversed(size), 3).transpose(2, 1, 0, 3)
    affine = np.eye(4)
    # MetaImage lists the directions axis by axis.
    directions = np.array([float(word) for word in header['TransformMatrix'].split()]).reshape(3, 3).T
    affine[:3, :3] = directions * [float(word) for word in header['ElementSpacing'].split()]
    affine[:3, 3] = [float(word) for word in header['Offset'].split()]
    return mappings.Displacement(vectors, affine)


PLASTIMATCH_STAGE = '''
[STAGE]
xform=bspline
optim=lbfgsb
impl=plastimatch
metric={metric}
max_its={iterations}
grid_spac={spacing} {spacing} {spacing}
res={res} {res} {res}
'''


class Plastimatch(methods.Peer):
    """B-splines of 80, 40, 20 and 10 mm, mean squares (mutual information on the brains of unlike intensity)."""

    name = 'plastimatch'

    def register(self, pair, work):
        if pair.is_2d:
            raise methods.Failed('3-D images only')
        parameters, field = work / 'plastimatch.txt', work / 'field.nii.gz'
        metric = 'mi' if 'malf' in pair.name or pair.metric != 'ssd' else 'mse'
        stages = ''.join(PLASTIMATCH_STAGE.format(metric=metric, iterations=50, spacing=spacing, res=res)
                         for spacing, res in ((80, 4), (40, 2), (20, 1), (10, 1)))
        align = methods.ALIGN_CENTRES if pair.far_apart else ''
        parameters.write_text(f'[GLOBAL]\nfixed={pair.fixed}\nmoving={pair.moving}\nvf_out={field}\n'
                              f'{align}{stages}')
        seconds, _ = methods.execute(['plastimatch', 'register', parameters], work / 'plastimatch.log')
        return methods.Outcome(seconds, mappings.Displacement.read(field))
