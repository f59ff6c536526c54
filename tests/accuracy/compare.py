# SPDX-License-Identifier: Apache-2.0
"""Registers every pair with every method, measures, and prints one Markdown table. See tests/accuracy/run."""

import argparse
import os
import pathlib
import sys

import nibabel
import numpy as np

import datasets
import demons_peers
import mappings
import methods
import nonrigid_peers
import pairs


def sample_linear(fixed, moving, mapping):
    """Moving intensities on the fixed grid, and where they have a source."""
    to_index = np.linalg.inv(pairs.lps_affine(moving))
    voxels = np.asanyarray(moving.dataobj).astype(np.float32)
    limits = np.array(voxels.shape)
    values = np.zeros(fixed.shape, dtype=np.float32)
    inside = np.zeros(fixed.shape, dtype=bool)
    for z in range(fixed.shape[2]):
        position = pairs.map_points(to_index, mapping(pairs.plane_points(fixed, z)))
        here = np.all((position >= 0) & (position <= limits - 1), axis=1)
        lower = np.minimum(np.floor(position[here]).astype(int), np.maximum(limits - 2, 0))
        weight = position[here] - lower
        plane = np.zeros(len(position), dtype=np.float32)
        for corner in np.ndindex(2, 2, 2):
            index = np.minimum(lower + corner, limits - 1)
            plane[here] += voxels[tuple(index.T)] * np.prod(np.where(corner, weight, 1 - weight), axis=1)
        values[:, :, z] = plane.reshape(fixed.shape[:2])
        inside[:, :, z] = here.reshape(fixed.shape[:2])
    return values, inside


def normalised_cross_correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def normalised_mutual_information(a, b):
    """(H(a) + H(b)) / H(a, b), 64 bins, after Studholme et al. 1999."""
    joint = np.histogram2d(a, b, bins=64)[0]
    entropy = lambda p: float(-(p[p > 0] * np.log(p[p > 0])).sum())
    joint /= joint.sum()
    return (entropy(joint.sum(0)) + entropy(joint.sum(1))) / entropy(joint)


def similarity(pair, mapping):
    """NCC where intensities are alike, NMI where they are not; over the fixed voxels that have a source."""
    fixed, moving = nibabel.load(pair.fixed), nibabel.load(pair.moving)
    values, inside = sample_linear(fixed, moving, mapping)
    if not inside.any():
        return 'no overlap'
    reference = np.asanyarray(fixed.dataobj).astype(np.float32)[inside]
    measure = normalised_cross_correlation if pair.metric == 'ssd' else normalised_mutual_information
    return f'{"NCC" if pair.metric == "ssd" else "NMI"} {measure(reference, values[inside]):.3f}'


def dice(pair, warped):
    """Mean over all labels of either map."""
    fixed = np.asanyarray(nibabel.load(pair.fixed_labels).dataobj).astype(int)
    labels = np.union1d(np.unique(fixed), np.unique(nibabel.load(pair.moving_labels).dataobj))
    labels = labels[labels != 0].astype(int)
    count = lambda values: np.bincount(values.ravel(), minlength=labels.max() + 1)[labels]
    common = count(fixed[fixed == warped])
    return float(np.mean(2 * common / (count(fixed) + count(warped))))


def points_error(pair, mapped):
    distance = np.linalg.norm(mapped - pair.moving_points, axis=1)
    return f'{distance.mean():.2f} / {distance.max():.2f} {pair.unit}'


def before(pair):
    identity = mappings.Affine(np.eye(4))
    parts = [similarity(pair, identity)]
    if pair.moving_points is not None:
        parts.append(points_error(pair, pair.fixed_points))
    if pair.fixed_labels is not None:
        labels = methods.resample_nearest(nibabel.load(pair.fixed_labels), nibabel.load(pair.moving_labels), identity)
        parts.append(f'Dice {dice(pair, labels):.3f}')
    return '; '.join(parts)


class Comparison:
    """Runs the table row by row; remembers the maps that later cells refer to."""

    def __init__(self, ways, folder):
        self._ways = ways
        self._folder = folder
        self._mappings = {}  # by (pair's name, way's name)

    def head(self):
        titles = ['pair', 'metric', 'before', *(way.name for way in self._ways)]
        return '| ' + ' | '.join(titles) + ' |\n' + '|---' * len(titles) + '|'

    def row(self, pair):
        cells = [pair.name, pair.metric, before(pair), *(self._cell(pair, way) for way in self._ways)]
        return '| ' + ' | '.join(cells) + ' |'

    def _cell(self, pair, way):
        work = self._folder / f'{pair.name.replace(" ", "_").replace(",", "")}-{way.name}'
        work.mkdir(parents=True, exist_ok=True)
        try:
            outcome = way.register(pair, work)
            self._mappings[pair.name, way.name] = outcome.mapping
            parts = [f'{outcome.seconds:.1f} s', similarity(pair, outcome.mapping)]
            parts += self._errors(pair, way, outcome, work)
            if isinstance(outcome.mapping, mappings.Displacement):
                parts.append(f'det J {outcome.mapping.smallest_determinant(None):.2f} or more')
            way.forget(outcome, work)
        except methods.Failed as reason:
            return str(reason)
        if outcome.verdict:
            parts += [f'optimise {outcome.optimise_ms:.0f} ms', outcome.verdict]
        return '; '.join(parts)

    def _errors(self, pair, way, outcome, work):
        """Against the truth that the pair has; without one, against its own earlier result or that of elastix."""
        if pair.fixed_labels is not None:
            yield f'Dice {dice(pair, way.warp_labels(outcome, pair, work)):.3f}'
        if pair.fixed_points is None:
            return
        mapped = way.map_points(outcome, pair.fixed_points, work)
        if pair.moving_points is not None:
            yield points_error(pair, mapped)
            return
        for reference, matrix, words in (
            (self._mappings.get((pair.repeats, way.name)), pair.known, 'repeats the pair above to'),
            (self._mappings.get((pair.name, 'elastix')) if way.name != 'elastix' else None, np.eye(4),
             'from elastix')):
            if reference is not None:
                expected = pairs.map_points(matrix, reference(pair.fixed_points))
                yield f'{words} {np.linalg.norm(mapped - expected, axis=1).mean():.2f} {pair.unit}'


def compare(arguments, ways):
    comparison = Comparison(ways, arguments.out)
    print(comparison.head(), flush=True)
    for pair in datasets.prepare(arguments.data, arguments.out / 'prepared'):
        if arguments.method == 'log-demons' and pair.metric != 'ssd':
            continue
        if any(part in pair.name for part in arguments.pairs.split(',')):
            print(comparison.row(pair), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', help='folder with intrawarpd and intrawarp; without it, the peers run alone')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'))
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/accuracy'))
    parser.add_argument('--method', choices=methods.METHODS, default='affine',
                        help='all but auto run after an affine stage; log-demons on pairs of like intensities')
    parser.add_argument('--no_affine', action='store_true',
                        help='log-demons without the affine stage, beside peers that are demons')
    parser.add_argument('--options', default='', help='more options for intrawarp register, by blanks')
    parser.add_argument('--pairs', default='', help='substrings of the names of the pairs to run, by comma')
    parser.add_argument('--peers', action='store_true')
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error('INTRAWARP_TEST_DATA is not set')
    if arguments.no_affine and arguments.method != 'log-demons':
        parser.error('--no_affine is for --method=log-demons')
    peers = []
    if arguments.peers:
        if arguments.no_affine:
            peers = demons_peers.available(demons_peers.Parameters.of_options(arguments.options.split()))
        elif arguments.method == 'affine':
            peers = [methods.Elastix(), methods.Plastimatch()]
        else:
            peers = nonrigid_peers.available()
    if not arguments.bin:
        compare(arguments, peers)
        return 0
    try:
        binaries = methods.find_binaries(arguments.bin)
        arguments.out.mkdir(parents=True, exist_ok=True)
        with methods.server(binaries, arguments.device, arguments.out / 'server.log') as (address, device):
            print(f'intrawarp on {device}, {os.cpu_count()} CPU cores. Points: mean / max distance. '
                  'Seconds: a whole command, files read and volumes uploaded.\n')
            ours = methods.Intrawarp(binaries, address, arguments.method, arguments.options.split(),
                                     arguments.no_affine)
            compare(arguments, [*peers, ours])
    except methods.Failed as reason:
        print(f'tests/accuracy/run: {reason}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
