#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""elastix on the slices that `slice_to_volume --dump=FOLDER` writes: rigid, mutual information, from the header.

    slice_elastix.py FOLDER VOLUME.nii.gz [THREADS]

elastix takes no image that is one voxel thick, so each slice goes in as five equal planes, 0.2 mm apart. Prints the
median and the 95 % quantile of the error over the slice's points in mm, successes (below 2 mm) and seconds, a line for
each case.
"""
import collections
import pathlib
import subprocess
import sys
import tempfile
import time

import nibabel
import numpy as np

PLANES, DISTANCE_MM, SUCCESS_MM = 5, 0.2, 2.0
PARAMETERS = '''
(FixedInternalImagePixelType "float")
(MovingInternalImagePixelType "float")
(FixedImageDimension 3)
(MovingImageDimension 3)
(UseDirectionCosines "true")
(Registration "MultiResolutionRegistration")
(FixedImagePyramid "FixedSmoothingImagePyramid")
(MovingImagePyramid "MovingSmoothingImagePyramid")
(FixedImagePyramidSchedule 8 8 1 4 4 1 2 2 1 1 1 1)
(MovingImagePyramidSchedule 8 8 8 4 4 4 2 2 2 1 1 1)
(NumberOfResolutions 4)
(Interpolator "LinearInterpolator")
(ResampleInterpolator "FinalBSplineInterpolator")
(Resampler "DefaultResampler")
(Transform "EulerTransform")
(HowToCombineTransforms "Compose")
(AutomaticScalesEstimation "true")
(AutomaticTransformInitialization "false")
(Metric "AdvancedMattesMutualInformation")
(NumberOfHistogramBins 32)
(Optimizer "AdaptiveStochasticGradientDescent")
(MaximumNumberOfIterations 500)
(ImageSampler "RandomCoordinate")
(NumberOfSpatialSamples 4096)
(NewSamplesEveryIteration "true")
(MaximumNumberOfSamplingAttempts 8)
(RequiredRatioOfValidSamples 0.05)
(RandomSeed 121212)
(DefaultPixelValue 0)
(WriteResultImage "false")
(WriteTransformParametersEachIteration "false")
'''


def write_slab(source, path):
    image = nibabel.load(source)
    affine = image.affine.copy()
    normal = affine[:3, 2] / np.linalg.norm(affine[:3, 2])
    affine[:3, 2] = DISTANCE_MM * normal
    affine[:3, 3] -= DISTANCE_MM * (PLANES - 1) / 2 * normal
    planes = np.repeat(np.asanyarray(image.dataobj, dtype=np.float32).reshape(image.shape[:2] + (1,)), PLANES, axis=2)
    nibabel.save(nibabel.Nifti1Image(planes, affine), path)


def register(slice_path, volume, threads, work):
    """The points' images and the seconds; None where elastix ends with an error."""
    slab, parameters = work / 'slab.nii.gz', work / 'parameters.txt'
    write_slab(slice_path, slab)
    parameters.write_text(PARAMETERS)
    begin = time.monotonic()
    done = subprocess.run(['elastix', '-f', slab, '-m', volume, '-out', work, '-p', parameters, '-threads', threads],
                          capture_output=True, check=False)
    seconds = time.monotonic() - begin
    table = np.loadtxt(str(slice_path).removesuffix('.nii.gz') + '.csv', delimiter=',', skiprows=1)
    if done.returncode != 0:
        return None, table, seconds
    points = work / 'points.txt'
    with points.open('w') as out:
        out.write(f'point\n{len(table)}\n')
        np.savetxt(out, table[:, :3], fmt='%.6f')
    subprocess.run(['transformix', '-def', points, '-out', work, '-tp', work / 'TransformParameters.0.txt'],
                   capture_output=True, check=True)
    mapped = [[float(word) for word in line.split('OutputPoint = [')[1].split(']')[0].split()]
              for line in (work / 'outputpoints.txt').read_text().splitlines()]
    return np.array(mapped), table, seconds


def main():
    folder, volume = pathlib.Path(sys.argv[1]), sys.argv[2]
    threads = sys.argv[3] if len(sys.argv) > 3 else '2'
    errors, times, failed = collections.defaultdict(list), collections.defaultdict(list), collections.Counter()
    for path in sorted(folder.glob('*.nii.gz')):
        case = path.name.rsplit('_', 1)[0]
        with tempfile.TemporaryDirectory() as work:
            mapped, table, seconds = register(path, volume, threads, pathlib.Path(work))
        times[case].append(seconds)
        if mapped is None:
            failed[case] += 1
            mapped = table[:, :3]
        errors[case].append(np.linalg.norm(mapped - table[:, 3:], axis=1).mean())
    for case, values in errors.items():
        print(f'{case}: median {np.median(values):.2f}, 95 % {np.quantile(values, 0.95):.2f} mm, '
              f'{sum(value < SUCCESS_MM for value in values)} of {len(values)} within {SUCCESS_MM:g} mm, '
              f'{failed[case]} refused, {np.median(times[case]):.1f} s')


if __name__ == '__main__':
    main()
