# SPDX-License-Identifier: Apache-2.0
"""Holds the verdicts of a stated set of good and bad registrations against their truth.

See tests/accuracy/run_verdicts; verdict_cases.py says what the set holds.
"""

import argparse
import collections
import os
import pathlib
import sys
import time
import zlib

import numpy as np

import answers
import methods
import results
import robustness_cases
import svg
import verdict_cases


def ask_for_errors(task, work):
    """The options that ask for the predicted error at the task's places."""
    np.savetxt(work / 'places.csv', task.places[0], delimiter=',', header='x,y,z', comments='', fmt='%.9g')
    return [f'--error_at={work / "places.csv"}', f'--error_out={work / "errors.csv"}']


def held_against_truth(task, answer, work):
    """Figures of the true errors at the task's places beside the predicted ones, mm."""
    predicted = np.loadtxt(work / 'errors.csv', delimiter=',', skiprows=1, ndmin=2)
    true = np.linalg.norm(answer.mapping(np.asarray(task.places[0])) - task.places[1], axis=1)
    expected, bound = predicted[:, 3], predicted[:, 4]
    return {'places': len(true), 'below_bound': float(np.mean(true <= bound)), 'true_mean': float(np.mean(true)),
            'true_p95': float(np.quantile(true, 0.95)), 'expected_mean': float(np.mean(expected)),
            'bound_median': float(np.median(bound))}


def record_of(entry, task, command_line, more, work):
    """One registration, judged. {limit_mm} in `more` stands for the error that makes the answer bad."""
    ours = verdict_cases.WAYS.get(entry.way, [])
    options = [*(command_line.default_options() if ours is None else ours), *task.options,
               *(option.replace('{limit_mm}', f'{task.limit_mm:.3f}') for option in more)]
    if task.places is not None:
        options += ask_for_errors(task, work)
    linear = any(option == '--method=affine' or option == '--method=rigid' for option in options)
    answer = command_line.register(task.fixed, task.moving, options, work, dense=not linear)
    record = {'key': entry.key, 'family': entry.family, 'way': entry.way, 'verdict': answer.verdict,
              'seconds': round(answer.seconds, 2)}
    if answer.report is None:
        return {**record, 'good': None, 'error': answer.error}
    good, figures = task.judge(answer)
    if task.places is not None and answer.report['predicted_error_mm'] is not None:
        record['predicted'] = held_against_truth(task, answer, work)
    return {**record, 'good': bool(good), **figures, 'reasons': answer.report['reasons'],
            'report': answers.numbers_of(answer.report)}


def run_entries(chosen, command_line, more, done, deadline, work):
    """True when every entry was run before the deadline."""
    left = [entry for entry in chosen if not done.has(entry.key)]
    for number, entry in enumerate(left):
        if time.monotonic() > deadline:
            return False
        done.add(record_of(entry, entry.make(work), command_line, more, work))
        if number % 50 == 49:
            print(f'{number + 1} of {len(left)} registrations', file=sys.stderr, flush=True)
    return True


def counts_of(records):
    """good and ok, good and review, bad and ok, bad and review, without a result."""
    count = collections.Counter((record['good'], record['verdict']) for record in records)
    return [count[True, 'ok'], count[True, 'review'], count[False, 'ok'], count[False, 'review'],
            sum(record['good'] is None for record in records)]


def table(records, before):
    """Rows by family and by way. `before`: the records of an earlier program by key, or None."""
    columns = ['good, ok', 'good, review', 'bad, ok', 'bad, review', 'no result']
    titles = ['', 'registrations', *columns, *([f'{name}, before' for name in columns] if before else [])]
    yield '| ' + ' | '.join(titles) + ' |'
    yield '|---' * len(titles) + '|'
    groups = {}
    for field in ('family', 'way'):
        for record in records:
            groups.setdefault((field, record[field]), []).append(record)
    groups['', '**all**'] = records
    for (_, name), group in groups.items():
        earlier = [before[record['key']] for record in group if record['key'] in before] if before else []
        numbers = [len(group), *counts_of(group), *(counts_of(earlier) if before else [])]
        yield f'| {name} | ' + ' | '.join(map(str, numbers)) + ' |'


def conclusion(records):
    good_ok, good_review, bad_ok, bad_review, _ = counts_of(records)
    good, bad = good_ok + good_review, bad_ok + bad_review
    shares = (100 * bad_ok / max(bad, 1), 100 * good_review / max(good, 1))
    return (f'{good} good, {bad} bad: {bad_ok} of the bad ones are ok ({shares[0]:.1f} %), {good_review} of the good '
            f'ones are review ({shares[1]:.1f} %).')


def wrong(records):
    """One line for each verdict that does not fit its label."""
    for record in records:
        if (record['good'], record['verdict']) in ((False, 'ok'), (True, 'review')):
            error = f'{record["mean_vox"]:.2f} voxels' if 'mean_vox' in record else (
                f'{record["mean_mm"]:.2f} mm' if 'mean_mm' in record else
                f'Dice {record["dice"]:.3f}' if 'dice' in record else 'no truth')
            label = 'good' if record['good'] else 'bad'
            yield f'{label}, {record["verdict"]}: {record["key"]}: {error}; {", ".join(record["reasons"])}'


def bound_table(records):
    """How often the true error lies below its bound, by family, over the results that are ok and over all."""
    yield '| | results | mean true error, mm | expected, mm | bound, mm | below, % | ok alone | below, % |'
    yield '|---|---|---|---|---|---|---|---|'
    with_truth = [record for record in records if 'predicted' in record]
    families = sorted({record['family'] for record in with_truth})
    for name, group in [*((family, [r for r in with_truth if r['family'] == family]) for family in families),
                        ('**all**', with_truth)]:
        mean = lambda field, group=group: np.mean([record['predicted'][field] for record in group])
        ok = [record['predicted']['below_bound'] for record in group if record['verdict'] == 'ok']
        yield (f'| {name} | {len(group)} | {mean("true_mean"):.2f} | {mean("expected_mean"):.2f} | '
               f'{mean("bound_median"):.1f} | {100 * mean("below_bound"):.1f} | {len(ok)} | '
               f'{f"{100 * np.mean(ok):.1f}" if ok else ""} |')


BOUND_KINDS = {'known maps': 'known map', 'livers, landmarks': 'livers', 'turned': 'turned', 'resection': 'resection'}


def bound_chart(records, groups=6):
    """The 95 % quantile of the true errors of a result over the median of its bounds: medians of sixths of the results."""
    lines = []
    for name, part in BOUND_KINDS.items():
        chosen = sorted((record['predicted']['bound_median'], record['predicted']['true_p95']) for record in records
                        if part in record['family'] and 'predicted' in record)
        parts = [piece for piece in np.array_split(np.array(chosen), groups) if len(piece)]
        lines.append(svg.Line(name, [tuple(np.median(piece, axis=0)) for piece in parts]))
    limit = max([5, *(value for line in lines for point in line.points for value in point)])
    lines.append(svg.Line('bound = error', [(0, 0), (limit, limit)]))
    return svg.Chart('95 % quantile of the true errors', 'median bound, mm', (0, limit), lines, 'mm', (0, limit))


def summarise(records, out, compare):
    before = {record['key']: record for record in results.read(compare)[1]} if compare else None
    text = '\n'.join([*table(records, before), '', conclusion(records)])
    if before:
        shared = [record for record in records if record['key'] in before]
        text += f'\nBefore: {conclusion([before[record["key"]] for record in shared])}'
        changed = sum(before[record['key']]['verdict'] != record['verdict'] for record in shared)
        text += f'\n{changed} of {len(shared)} verdicts differ.'
    (out / 'table.md').write_text(text + '\n', encoding='utf-8')
    if any('predicted' in record for record in records):
        (out / 'bounds.md').write_text('\n'.join(bound_table(records)) + '\n', encoding='utf-8')
        svg.write(out / 'bounds.svg', [bound_chart(records)], columns=1)
    (out / 'wrong.txt').write_text('\n'.join(wrong(records)) + '\n', encoding='utf-8')
    print(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', required=True, type=pathlib.Path, help='folder with intrawarpd and intrawarp')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'))
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/verdicts'))
    parser.add_argument('--options', default='', help='more options of intrawarp register, by blanks; {limit_mm} '
                        'stands for the error that makes an answer bad')
    parser.add_argument('--every', type=int, default=1, help='only each N-th registration, from all over the set')
    parser.add_argument('--part', default='0/1', help='K/N: the K-th of N parts (from 0), for runs beside each other')
    parser.add_argument('--families', default='', help='substrings of the families to run, by comma')
    parser.add_argument('--ways', default='', help='the ways to run, by comma; default: all')
    parser.add_argument('--minutes', type=float, default=600, help='none is begun after this long; run again to go on')
    parser.add_argument('--compare', type=pathlib.Path, help='results.jsonl of an earlier program, for a before column')
    parser.add_argument('--summary', action='store_true', help='only the table of what was run before')
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.summary:
        parser.error('INTRAWARP_TEST_DATA is not set')
    arguments.part, arguments.parts = map(int, arguments.part.split('/'))
    return arguments


def chosen_entries(arguments, command_line, binaries, work):
    cases = robustness_cases.Cases([str(binaries / 'intrawarp'), 'phantom'], arguments.data, work)
    makers = verdict_cases.Makers(cases, command_line, arguments.data)
    ways = arguments.ways.split(',') if arguments.ways else None
    entries = [entry for entry in verdict_cases.entries(makers, work)
               if any(part in entry.family for part in arguments.families.split(','))
               and (ways is None or entry.way in ways)]
    # Scattered over the families, so that a run that is ended is a sample of the whole.
    scattered = sorted(entries, key=lambda entry: zlib.crc32(entry.key.encode()))[::arguments.every]
    return scattered[arguments.part::arguments.parts]


def main():
    arguments = parse_arguments()
    work = arguments.out / 'work'
    work.mkdir(parents=True, exist_ok=True)
    path = arguments.out / 'results.jsonl'
    if arguments.summary:
        summarise(results.read(path)[1], arguments.out, arguments.compare)
        return 0
    deadline = time.monotonic() + 60 * arguments.minutes
    try:
        binaries = methods.find_binaries(arguments.bin)
        with methods.server(binaries, arguments.device, arguments.out / 'server.log') as (address, device):
            command_line = answers.CommandLine(binaries / 'intrawarp', address)
            more = arguments.options.split()
            settings = {'program': results.program_of(binaries), 'device': arguments.device, 'options': more}
            done = results.Results(path, settings, ('key',))
            chosen = chosen_entries(arguments, command_line, binaries, work)
            print(f'intrawarp on {device}: {len(chosen)} registrations')
            finished = run_entries(chosen, command_line, more, done, deadline, work)
    except methods.Failed as reason:
        print(f'tests/accuracy/run_verdicts: {reason}', file=sys.stderr)
        return 1
    summarise(done.records, arguments.out, arguments.compare)
    if not finished:
        print('The time was up before the last registration: run the same command again to go on.')
    return 0


if __name__ == '__main__':
    sys.exit(main())
