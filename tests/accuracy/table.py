# SPDX-License-Identifier: Apache-2.0
"""Registers pairs in several ways and compares the ways with paired statistics. See tests/accuracy/run_table."""

import argparse
import os
import pathlib
import sys

import nibabel
import numpy as np

import answers
import compare
import datasets
import measures
import methods
import nonrigid_peers
import paired_statistics
import pairs
import results

# The measures that ways are compared in, by the name of the record's field.
MEASURES = {'error': 'mean distance of landmarks', 'dice': 'Dice', 'sd_log_j': 'SDlogJ', 'seconds': 'seconds'}


def displacement_on(image, mapping):
    """T(x) - x at every voxel, in voxels of the image's own grid: x, y, z, component."""
    to_vox = np.linalg.inv(pairs.lps_affine(image)[:3, :3])
    planes = []
    for z in range(image.shape[2]):
        points = pairs.plane_points(image, z)
        planes.append(((mapping(points) - points) @ to_vox.T).reshape(*image.shape[:2], 3))
    return np.stack(planes, axis=2)


def figures_of(pair, mapping):
    """What the truth and the field say of a map."""
    figures = {}
    if pair.moving_points is not None:
        errors = measures.distances(mapping(pair.fixed_points), pair.moving_points)
        figures.update(error=errors['mean'], error_p95=errors['p95'], error_max=errors['max'])
    if pair.fixed_labels is not None:
        labels = methods.resample_nearest(nibabel.load(pair.fixed_labels), nibabel.load(pair.moving_labels), mapping)
        figures['dice'] = compare.dice(pair, labels)
    image = nibabel.load(pair.fixed)
    if min(image.shape[:3]) > 4:
        determinant = measures.learn2reg_determinant(displacement_on(image, mapping))
        figures.update(sd_log_j=measures.sd_log_jacobian(determinant), min_det=float(determinant.min()),
                       folded=float((determinant <= 0).mean()))
    return figures


class Way:
    """The base of the ways: `register` returns a record of what the registration cost, and its map or None."""

    def run(self, pair, work):
        """The record with the figures of the map."""
        record, mapping = self.register(pair, work)
        return record if mapping is None else {**record, **figures_of(pair, mapping)}


class Ours(Way):
    """`intrawarp register` with some options; no options: the program's own choice."""

    def __init__(self, command_line, options):
        self._command_line = command_line
        self._options = options.split() or command_line.default_options()
        self.name = f'intrawarp {" ".join(self._options) or "(default)"}'.replace('--method=', '').replace('--', '')

    def register(self, pair, work):
        answer = self._command_line.register(pair.fixed, pair.moving, self._options, work)
        if answer.report is None:
            return {'failed': answer.error}, None
        return {'seconds': answer.seconds, 'server_ms': answer.report['latency_ms']['total'],
                'verdict': answer.verdict, 'reasons': answer.report['reasons']}, answer.mapping


class Theirs(Way):
    def __init__(self, peer):
        self.name = peer.name
        self._peer = peer

    def register(self, pair, work):
        try:
            outcome = self._peer.register(pair, work)
        except (methods.Failed, OSError) as reason:
            return {'failed': str(reason)}, None
        return {'seconds': outcome.seconds}, outcome.mapping


def cell(record):
    if 'failed' in record:
        return record['failed'].replace('|', '/')
    parts = [f'{record["error"]:.2f} / {record["error_max"]:.1f}' if 'error' in record else '',
             f'Dice {record["dice"]:.3f}' if 'dice' in record else '',
             f'SDlogJ {record["sd_log_j"]:.3f}, det {record["min_det"]:.2f}' if 'sd_log_j' in record else '',
             f'{record["seconds"]:.1f} s', record.get('verdict', '')]
    return '; '.join(part for part in parts if part)


def pair_table(records, ways):
    yield '| pair | ' + ' | '.join(ways) + ' |'
    yield '|---' * (len(ways) + 1) + '|'
    cells = {(record['pair'], record['way']): cell(record) for record in records}
    for pair in dict.fromkeys(record['pair'] for record in records):
        yield f'| {pair} | ' + ' | '.join(cells.get((pair, way), '') for way in ways) + ' |'


def statistics(records, ways):
    """Each way beside the first one, measure by measure."""
    for field, title in MEASURES.items():
        values = {way: {record['pair']: record[field] for record in records
                        if record['way'] == way and record.get(field) is not None} for way in ways}
        comparisons = paired_statistics.compare(values[ways[0]], {way: values[way] for way in ways[1:]})
        if comparisons:
            yield from ('', *paired_statistics.table(title, ways[0], comparisons))


def summarise(records, out):
    ways = list(dict.fromkeys(record['way'] for record in records))
    text = '\n'.join([*pair_table(records, ways), *statistics(records, ways)])
    (out / 'table.md').write_text(text + '\n', encoding='utf-8')
    print(text)


def register_all(arguments, ways, done):
    work = arguments.out / 'work'
    work.mkdir(exist_ok=True)
    for pair in datasets.prepare(arguments.data, arguments.out / 'prepared'):
        has_truth = pair.moving_points is not None or pair.fixed_labels is not None
        if not has_truth or not any(part in pair.name for part in arguments.pairs.split(',')):
            continue
        for way in ways:
            if not done.has(pair.name, way.name):
                done.add({'pair': pair.name, 'way': way.name, **way.run(pair, work)})
        print(pair.name, file=sys.stderr, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', required=True, type=pathlib.Path, help='folder with intrawarpd and intrawarp')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'),
                        help='public test data, or a folder of DIR-Lab or Learn2Reg, laid out as in datasets.py')
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/table'))
    parser.add_argument('--ways', default='', help='options of intrawarp register, one way after the other, by |; the '
                        'first is the reference; an empty one is the default')
    parser.add_argument('--pairs', default='', help='substrings of the names of the pairs to run, by comma')
    parser.add_argument('--peers', action='store_true')
    parser.add_argument('--summary', action='store_true', help='only the tables of what was run before')
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.summary:
        parser.error('neither --data nor INTRAWARP_TEST_DATA is set')
    return arguments


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / 'results.jsonl'
    if arguments.summary:
        summarise(results.read(path)[1], arguments.out)
        return 0
    try:
        binaries = methods.find_binaries(arguments.bin)
        with methods.server(binaries, arguments.device, arguments.out / 'server.log') as (address, device):
            command_line = answers.CommandLine(binaries / 'intrawarp', address)
            ways = [Ours(command_line, options) for options in arguments.ways.split('|')]
            ways += [Theirs(peer) for peer in nonrigid_peers.available()] if arguments.peers else []
            settings = {'program': results.program_of(binaries), 'device': device, 'data': str(arguments.data)}
            done = results.Results(path, settings, ('pair', 'way'))
            register_all(arguments, ways, done)
    except (methods.Failed, datasets.UnknownLayout) as reason:
        print(f'tests/accuracy/run_table: {reason}', file=sys.stderr)
        return 1
    summarise(done.records, arguments.out)
    return 0


if __name__ == '__main__':
    sys.exit(main())
