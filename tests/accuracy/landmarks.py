# SPDX-License-Identifier: Apache-2.0
"""Registers the livers with a few of their landmarks, and measures the error at the others. See run_landmarks."""

import argparse
import csv
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys

PAIRS = (('dataset18', 'cyc_1_10'), ('dataset18', 'cyc_3_10'), ('dataset26', 'cyc_1_6'), ('dataset26', 'cyc_4_7'))
FIXED = 'exhMaster'


def read_points(path):
    with open(path, newline='', encoding='utf-8') as file:
        return [tuple(float(cell) for cell in row) for row in list(csv.reader(file))[1:]]


def write_rows(path, header, rows):
    path.write_text('\n'.join([header, *(','.join(f'{cell:.9g}' for cell in row) for row in rows)]) + '\n',
                    encoding='utf-8')


def spread(points, count, rng):
    """Indices of points that lie apart: a random one, then always the one that is farthest from those that are taken."""
    taken = [rng.randrange(len(points))]
    while len(taken) < count:
        taken.append(max(range(len(points)), key=lambda i: min(math.dist(points[i], points[j]) for j in taken)))
    return taken


def noisy(point, sigma, rng):
    return tuple(coordinate + rng.gauss(0, sigma) for coordinate in point)


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f'{" ".join(map(str, command[1:3]))}: {done.stderr.strip().splitlines()[-1]}')
    return done.stdout


class Server:
    """A server of its own on free ports, for as long as the block lasts."""

    def __init__(self, binaries, device, log):
        self._command = [str(binaries / 'intrawarpd'), '--listen=127.0.0.1:0', '--http=127.0.0.1:0',
                         f'--device={device}']
        self._log = log

    def __enter__(self):
        with open(self._log, 'w', encoding='utf-8') as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        words = dict(word.split('=', 1) for word in self._process.stdout.readline().split() if '=' in word)
        return words['grpc'], words['device']

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=30)


class Livers:
    def __init__(self, arguments, address):
        self._program = [arguments.bin / 'intrawarp', f'--server={address}']
        self._data = arguments.data / 'reg3d/liver_4dmri_eth'
        self._work = arguments.out / 'work'
        self._work.mkdir(parents=True, exist_ok=True)

    def points(self, subject, state, where):
        return read_points(self._data / subject / f'{state}_landmarks_{where}.csv')

    def register(self, subject, state, options):
        """(transform, report)."""
        report = self._work / 'report.json'
        folder = self._data / subject
        output = run([*self._program, 'register', f'--fixed={folder / FIXED}.nii.gz',
                      f'--moving={folder / state}.nii.gz', *options, f'--report={report}'])
        return output.split()[-1], json.loads(report.read_text(encoding='utf-8'))

    def errors(self, transform, fixed, moving):
        source, target = self._work / 'points.csv', self._work / 'mapped.csv'
        write_rows(source, 'x,y,z', fixed)
        run([*self._program, 'points', f'--transform={transform}', f'--in={source}', f'--out={target}'])
        return [math.dist(a, b) for a, b in zip(read_points(target), moving)]

    def forget(self, transform):
        run([*self._program, 'transform', 'delete', transform])

    def record(self, subject, state, options, taken, landmarks):
        """One registration with `landmarks`, rows of a file, and its errors at the landmarks that are not `taken`."""
        words = list(options)
        if landmarks:
            write_rows(self._work / 'landmarks.csv',
                       'fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z,sigma_mm', landmarks)
            words.append(f'--landmarks={self._work / "landmarks.csv"}')
        transform, report = self.register(subject, state, words)
        fixed, moving = (self.points(subject, each, 'liver') for each in (FIXED, state))
        others = [i for i in range(len(fixed)) if i not in taken]
        inside = self.errors(transform, [fixed[i] for i in others], [moving[i] for i in others])
        outside = self.errors(transform, self.points(subject, FIXED, 'outside'), self.points(subject, state, 'outside'))
        self.forget(transform)
        return {'inside': statistics.mean(inside), 'outside': statistics.mean(outside), 'worst': max(inside),
                'optimise_ms': report['latency_ms']['optimise'],
                'expected_mm': (report['predicted_error_mm'] or {}).get('expected'), 'verdict': report['verdict'],
                'missed_mm': report['landmarks']['mean_mm'] if landmarks else None}


def measure(livers, arguments):
    records = []
    for subject, state in PAIRS:
        fixed, moving = (livers.points(subject, each, 'liver') for each in (FIXED, state))
        for way in arguments.ways:
            for choice in range(arguments.choices):
                rng = random.Random(1000 * choice + 7)
                taken = spread(fixed, arguments.count, rng)
                rows = [(*fixed[i], *noisy(moving[i], arguments.accuracy / math.sqrt(3), rng),
                         arguments.sigma or arguments.accuracy / math.sqrt(3)) for i in taken]
                for name, landmarks in (('without', []), ('with', rows)):
                    record = livers.record(subject, state, way.split(), taken, landmarks)
                    records.append({'pair': f'{subject} {state}', 'way': way or 'auto', 'choice': choice,
                                    'landmarks': name, **record})
                    print(json.dumps(records[-1]), flush=True)
    return records


def table(records):
    yield '| method | pair | inside without / with | worst without / with | outside without / with | at the landmarks | verdicts with |'
    yield '|---|---|---|---|---|---|---|'
    rows = list(dict.fromkeys((record['way'], record['pair']) for record in records))
    for way, pair in rows + [(way, None) for way in dict.fromkeys(way for way, _ in rows)]:
        chosen = [r for r in records if r['way'] == way and pair in (r['pair'], None)]
        without, with_ = ([r for r in chosen if r['landmarks'] == name] for name in ('without', 'with'))

        def mean(field, of):
            return statistics.mean(record[field] for record in of)

        cells = [f'{mean(field, without):.2f} / {mean(field, with_):.2f}' for field in ('inside', 'worst', 'outside')]
        verdicts = ', '.join(f'{sum(r["verdict"] == v for r in with_)} {v}' for v in sorted({r['verdict'] for r in with_}))
        yield f'| {way} | {pair or "mean"} | {" | ".join(cells)} | {mean("missed_mm", with_):.2f} | {verdicts} |'


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', type=pathlib.Path, required=True)
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'))
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/landmarks'))
    parser.add_argument('--ways', type=lambda text: text.split('|'),
                        default=['', '--method=affine,log-demons', '--method=search,ffd --metric=lncc --spacing_vox=3'])
    parser.add_argument('--count', type=int, default=3)
    parser.add_argument('--accuracy', type=float, default=2.0)
    parser.add_argument('--sigma', type=float, help='what the landmarks are said to be sure to, mm')
    parser.add_argument('--choices', type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.data:
        print('INTRAWARP_TEST_DATA is not set', file=sys.stderr)
        return 2
    arguments.data = pathlib.Path(arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with Server(arguments.bin, arguments.device, arguments.out / 'server.log') as (address, device):
        print(f'device {device}', flush=True)
        records = measure(Livers(arguments, address), arguments)
    (arguments.out / 'results.json').write_text(json.dumps(records, indent=1), encoding='utf-8')
    text = '\n'.join(table(records))
    (arguments.out / 'table.md').write_text(text + '\n', encoding='utf-8')
    print(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
