# SPDX-License-Identifier: Apache-2.0
"""Registers each open pair with the same request on two devices and compares the answers. See run_devices."""

import argparse
import contextlib
import os
import pathlib
import sys

import nibabel
import numpy as np

import answers
import measures
import methods
import pairs

POINTS = 20000


def tissue_points(image):
    """Centres of random voxels brighter than the mean, LPS mm."""
    brighter = np.count_nonzero(np.asanyarray(image.dataobj) > np.asanyarray(image.dataobj).mean())
    return pairs.body_points(image, min(POINTS, brighter), seed=7)


def true_error(pair, mapping):
    if pair.moving_points is None:
        return '-'
    return f'{measures.distances(mapping(pair.fixed_points), pair.moving_points)["mean"]:.2f}'


def expected_of(answer):
    """The expected error and the bound of 95 %, mm; '-' where the report has no estimate."""
    error = answer.report.get('predicted_error_mm') or {}
    return ' / '.join(f'{error[name]:.2f}' if name in error else '-' for name in ('expected', 'bound'))


def row(pair, given):
    """One line of the table: the answers of both devices, or why there is none."""
    if any(answer.report is None for answer in given):
        return f'| {pair.name} | ' + ' | '.join(answer.error or answer.verdict for answer in given) + ' | | | | |'
    points = tissue_points(nibabel.load(pair.fixed))
    mapped = [answer.mapping(points) for answer in given]
    apart = measures.distances(*mapped)
    p99 = np.percentile(np.linalg.norm(mapped[0] - mapped[1], axis=1), 99)
    cells = [f'{apart["mean"]:.3f}', f'{p99:.3f}', ', '.join(expected_of(answer) for answer in given),
             ', '.join(true_error(pair, answer.mapping) for answer in given)]
    return f'| {pair.name} | ' + ' | '.join([*(answer.verdict for answer in given), *cells]) + ' |'


def table(command_lines, options, chosen, work):
    titles = ['pair', *command_lines, 'apart, mean', 'apart, p99', 'expected / bound', 'true error']
    yield '| ' + ' | '.join(titles) + ' |'
    yield '|---' * len(titles) + '|'
    for pair in chosen:
        yield row(pair, [line.register(pair.fixed, pair.moving, options, work) for line in command_lines.values()])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', required=True, type=pathlib.Path, help='folder with intrawarpd and intrawarp')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'))
    parser.add_argument('--devices', default='cpu,cuda:0', help='two devices, by comma')
    parser.add_argument('--pairs', default='', help='substrings of the names of pairs, by comma')
    parser.add_argument('--options', default='', help="options of intrawarp register, by blanks; none: the default")
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/devices'))
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error('INTRAWARP_TEST_DATA is not set')
    if len(set(arguments.devices.split(','))) != 2:
        parser.error('--devices takes two devices')
    return arguments


def main():
    arguments = parse_arguments()
    work = arguments.out / 'work'
    work.mkdir(parents=True, exist_ok=True)
    try:
        binaries = methods.find_binaries(arguments.bin)
        with contextlib.ExitStack() as stack:
            command_lines = {}
            for device in arguments.devices.split(','):
                log = arguments.out / f'server_{device.replace(":", "_")}.log'
                address, _ = stack.enter_context(methods.server(binaries, device, log))
                command_lines[device] = answers.CommandLine(binaries / 'intrawarp', address)
            options = arguments.options.split() or next(iter(command_lines.values())).default_options()
            chosen = (pair for pair in pairs.prepare(arguments.data, arguments.out / 'prepared')
                      if any(part in pair.name for part in arguments.pairs.split(',')))
            with open(arguments.out / 'table.md', 'w', encoding='utf-8') as file:
                for line in table(command_lines, options, chosen, work):
                    print(line, flush=True)
                    print(line, file=file, flush=True)
    except methods.Failed as reason:
        print(f'tests/accuracy/run_devices: {reason}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
