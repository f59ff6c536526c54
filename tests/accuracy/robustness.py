# SPDX-License-Identifier: Apache-2.0
"""Registers seeded cases with known maps and says how often the answer is right, refused or silently wrong.

See tests/accuracy/run_robustness. A case is good when the mean error over the body, where it has a counterpart, is
below two voxels of the fixed image.
"""

import argparse
import os
import pathlib
import sys
import time

import numpy as np

import answers
import measures
import methods
import nonrigid_peers
import paired_statistics
import pairs
import results
import robustness_cases
import svg

GOOD_VOXELS = 2
# A map that is worse than its own affine part by more than this was spoiled by the deformable stage.
SPOILED_VOXELS = 0.25
# By (good, verdict).
CLASSES = {(True, 'ok'): 'success', (True, 'review'): 'false alarm', (False, 'review'): 'refused',
           (False, 'ok'): 'silent failure'}
BINS = 5


def class_of(error_vox, verdict):
    """success, false alarm, refused, silent failure; or failed where the program failed."""
    if error_vox is None:
        return verdict
    return CLASSES[error_vox < GOOD_VOXELS, verdict]


def errors_of(case, mapping):
    errors = measures.distances(mapping(case.points()), case.mapped)
    return {**{f'{name}_mm': value for name, value in errors.items()},
            'mean_vox': errors['mean'] / case.fixed.voxel_mm()}


def errors_of_answer(case, answer):
    """Also of the affine part, which a deformable stage should not leave for something worse."""
    affine = measures.distances(answer.affine_part()(case.points()), case.mapped)
    return {**errors_of(case, answer.mapping), 'affine_vox': affine['mean'] / case.fixed.voxel_mm()}


def spoiled(record):
    return record.get('mean_vox', 0) > record.get('affine_vox', np.inf) + SPOILED_VOXELS


def identity_of(case):
    """The case without its images, and how far off the identity is."""
    before = measures.distances(case.points(), case.mapped)
    return {'seed': case.seed, 'kind': case.kind, 'source': case.source, 'amplitude': case.amplitude,
            'voxel_mm': case.fixed.voxel_mm(), 'before_mm': before['mean']}


class Ours:
    """One case through the server. {limit_mm} in an option stands for the error that makes a case bad."""

    name = 'intrawarp'

    def __init__(self, command_line, options):
        self._command_line = command_line
        self._options = options

    def run(self, case, fixed, moving, work):
        limit = GOOD_VOXELS * case.fixed.voxel_mm()
        options = [option.replace('{limit_mm}', f'{limit:.3f}') for option in self._options]
        answer = self._command_line.register(fixed, moving, options, work)
        record = {'seconds': answer.seconds, 'verdict': answer.verdict}
        if answer.report is None:
            return {**record, 'error': answer.error, 'class': class_of(None, answer.verdict)}
        errors = errors_of_answer(case, answer)
        return {**record, **errors, 'class': class_of(errors['mean_vox'], answer.verdict),
                'reasons': answer.report['reasons'], 'min_det': answer.report['jacobian']['min'],
                'report': answers.numbers_of(answer.report)}


class Theirs:
    """The same case through a peer, which gives no verdict: every bad result is a silent one."""

    def __init__(self, peer):
        self.name = peer.name
        self._peer = peer

    def run(self, case, fixed, moving, work):
        metric = 'ngf' if case.kind in robustness_cases.UNLIKE else 'ssd'
        pair = pairs.Pair(f'seed {case.seed}', metric, fixed, moving, far_apart=True)
        try:
            outcome = self._peer.register(pair, work)
        except (methods.Failed, OSError) as reason:
            return {'error': str(reason), 'verdict': 'failed', 'class': 'failed'}
        errors = errors_of(case, outcome.mapping)
        return {'seconds': outcome.seconds, 'verdict': 'ok', **errors, 'class': class_of(errors['mean_vox'], 'ok'),
                'min_det': outcome.mapping.smallest_determinant(None)}


def run_cases(cases, ways, done, deadline, work):
    """`ways`: (way, its seeds). True when every case was run before the deadline."""
    wanted = {}
    for way, seeds in ways:
        for seed in seeds:
            if not done.has(way.name, seed):
                wanted.setdefault(seed, []).append(way)
    for number, seed in enumerate(sorted(wanted)):
        if time.monotonic() > deadline:
            return False
        case = cases.make(seed)
        fixed, moving = case.fixed.write(work / 'fixed.nii'), case.moving.write(work / 'moving.nii')
        for way in wanted[seed]:
            record = {'way': way.name, **identity_of(case), **way.run(case, fixed, moving, work)}
            done.add(record)
            if record['class'] == 'silent failure' and way.name == Ours.name:
                print(f'seed {seed}: {case.kind} {case.amplitude:.3g}, {case.source}: verdict ok, '
                      f'{record["mean_mm"]:.1f} mm off', file=sys.stderr)
        if number % 50 == 49:
            print(f'{number + 1} of {len(wanted)} cases', file=sys.stderr, flush=True)
    return True


def bins_of(kind, records):
    """Fifths of the kind's range of amplitude that hold records: (lowest, highest, records)."""
    _, low, high = robustness_cases.AMPLITUDES[kind]
    width = (high - low) / BINS
    groups = [[] for _ in range(BINS)]
    for record in records:
        groups[min(BINS - 1, int((record['amplitude'] - low) / width))].append(record)
    return [(low + i * width, low + (i + 1) * width, group) for i, group in enumerate(groups) if group]


def share(records, name):
    return 100 * sum(record['class'] == name for record in records) / len(records)


def share_good(records):
    return 100 * sum(record.get('mean_vox', np.inf) < GOOD_VOXELS for record in records) / len(records)


def row(title, records):
    names = ('success', 'false alarm', 'refused', 'silent failure', 'failed')
    errors = sorted(record['mean_vox'] for record in records if 'mean_vox' in record)
    median = f'{errors[len(errors) // 2]:.2f}' if errors else '-'
    folded = sum(record.get('min_det', 1) <= 0 for record in records)
    counts = [str(sum(record['class'] == name for record in records)) for name in names]
    return (f'| {title} | {len(records)} | {share_good(records):.0f} % | ' + ' | '.join(counts)
            + f' | {median} | {sum(map(spoiled, records))} | {folded} |')


def table(records, way):
    """By kind, and within the kinds that have an amplitude by fifths of its range."""
    mine = [record for record in records if record['way'] == way]
    yield f'### {way}\n'
    yield ('| kind, amplitude | cases | error below 2 voxels | success | false alarm | refused | silent failure '
           '| failed | median error, voxels | worse than its affine part | folded |')
    yield '|---' * 11 + '|'
    for kind, (unit, _, _) in robustness_cases.AMPLITUDES.items():
        here = [record for record in mine if record['kind'] == kind]
        if not here:
            continue
        yield row(f'**{kind}** ({unit})', here)
        if len(here) >= 4 * BINS and way == Ours.name:
            yield from (row(f'{kind} {low:.3g} to {high:.3g}', group) for low, high, group in bins_of(kind, here))
    yield row('**all**', mine)
    yield ''


def ways_of(records):
    """Ours first, then the peers in the order in which they ran."""
    return sorted(dict.fromkeys(record['way'] for record in records), key=lambda way: way != Ours.name)


def charts(records):
    """Good answers and silent failures against amplitude, for each kind; peers beside them."""
    ways = ways_of(records)
    for kind, (unit, *limits) in robustness_cases.AMPLITUDES.items():
        here = [record for record in records if record['kind'] == kind]
        if not here:
            continue
        lines = []
        for way in ways:
            groups = [((low + high) / 2, group)
                      for low, high, group in bins_of(kind, [record for record in here if record['way'] == way])]
            good = [(x, share_good(group)) for x, group in groups]
            lines.append(svg.Line(f'{way}, right' if len(ways) > 1 else 'right', good))
            if way == Ours.name:
                lines.append(svg.Line('silently wrong', [(x, share(group, 'silent failure')) for x, group in groups]))
        yield svg.Chart(kind, unit, limits, lines)


def beside_peers(records, ways):
    """Errors of the peers beside ours on the seeds that both have, over the cases with a result."""
    errors = {way: {record['seed']: record['mean_vox'] for record in records
                    if record['way'] == way and 'mean_vox' in record} for way in ways}
    ours = errors.pop(Ours.name, {})
    comparisons = paired_statistics.compare(ours, errors)
    return [*paired_statistics.table('mean error, voxels', Ours.name, comparisons), ''] if comparisons else []


def summarise(records, out):
    ways = ways_of(records)
    lines = [line for way in ways for line in table(records, way)]
    text = '\n'.join([*lines, *beside_peers(records, ways)])
    (out / 'table.md').write_text(text + '\n', encoding='utf-8')
    svg.write(out / 'robustness.svg', list(charts(records)))
    print(text)
    print(f'{out / "results.jsonl"}, {out / "table.md"}, {out / "robustness.svg"}')


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', required=True, type=pathlib.Path, help='folder with intrawarpd and intrawarp')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'),
                        help='folder of the open images; without it, phantoms alone')
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/robustness'))
    parser.add_argument('--seeds', type=int, default=1000)
    parser.add_argument('--first_seed', type=int, default=0)
    parser.add_argument('--options', default='', help='options of intrawarp register, by blanks; {limit_mm} stands for '
                        'two voxels; default: no method, or affine,ffd where the program chooses none')
    parser.add_argument('--peers', action='store_true')
    parser.add_argument('--peer_seeds', type=int, default=48)
    parser.add_argument('--minutes', type=float, default=600,
                        help='no case is begun after this long; run again to go on')
    parser.add_argument('--summary', action='store_true', help='only the table and the plot of what was run before')
    return parser.parse_args()


def settings_of(arguments, options):
    return {'program': results.program_of(arguments.bin), 'device': arguments.device, 'options': options,
            'open_images': arguments.data is not None}


def main():
    arguments = parse_arguments()
    work = arguments.out / 'work'
    work.mkdir(parents=True, exist_ok=True)
    results_path = arguments.out / 'results.jsonl'
    if arguments.summary:
        summarise(results.read(results_path)[1], arguments.out)
        return 0
    deadline = time.monotonic() + 60 * arguments.minutes
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    try:
        binaries = methods.find_binaries(arguments.bin)
        with methods.server(binaries, arguments.device, arguments.out / 'server.log') as (address, device):
            command_line = answers.CommandLine(binaries / 'intrawarp', address)
            options = arguments.options.split() or command_line.default_options()
            done = results.Results(results_path, settings_of(arguments, options), ('way', 'seed'))
            ways = [(Ours(command_line, options), seeds)]
            if arguments.peers:
                ways += [(Theirs(peer), seeds[:arguments.peer_seeds]) for peer in nonrigid_peers.available()]
            print(f'intrawarp on {device}: {" ".join(options) or "its default method"}; '
                  f'seeds {seeds[0]} to {seeds[-1]}')
            cases = robustness_cases.Cases([str(binaries / 'intrawarp'), 'phantom'], arguments.data, work)
            finished = run_cases(cases, ways, done, deadline, work)
    except methods.Failed as reason:
        print(f'tests/accuracy/run_robustness: {reason}', file=sys.stderr)
        return 1
    summarise(done.records, arguments.out)
    if not finished:
        print('The time was up before the last case: run the same command again to go on.')
    return 0


if __name__ == '__main__':
    sys.exit(main())
