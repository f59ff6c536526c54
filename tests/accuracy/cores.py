# SPDX-License-Identifier: Apache-2.0
"""Registers pairs on some cores of the CPU device, beside peers on the same cores. See tests/accuracy/run_cores."""

import argparse
import concurrent.futures
import contextlib
import itertools
import os
import pathlib
import statistics
import sys
import time

import answers
import demons_peers
import methods
import nonrigid_peers
import pairs
import results
import table

OURS = {'affine': '--method=affine', 'affine,ffd': '--method=affine,ffd',
        'affine,log-demons': '--method=affine,log-demons', 'auto': ''}
# The pairs of 3-D images whose truth is landmarks or labels.
FAMILIES = (pairs.lapirn, pairs.liver, pairs.malf, pairs.prostate)
# How programs are told their number of threads; intrawarpd counts the cores that it may use.
THREADS = ('OMP_NUM_THREADS', 'ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS')


def peers_here():
    """The peers of this machine by the name of their way."""
    ways = {'elastix affine': methods.Elastix(), 'plastimatch affine': methods.Plastimatch()}
    ways |= {peer.name if peer.name == 'NiftyReg' else f'{peer.name} B-spline': peer
             for peer in nonrigid_peers.available()}
    parameters = demons_peers.Parameters(iterations=50, diffusion_sigma=1)
    ways |= {'ITK demons': peer for peer in demons_peers.available(parameters)
             if isinstance(peer, demons_peers.ItkDiffeomorphic)}
    return ways


@contextlib.contextmanager
def pinned(count):
    """Programs that start within the block run on the first `count` of this process's cores, with as many threads."""
    cores = os.sched_getaffinity(0)
    before = {name: os.environ.get(name) for name in THREADS}
    os.sched_setaffinity(0, sorted(cores)[:count])
    os.environ.update(dict.fromkeys(THREADS, str(count)))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def in_turns(pair, ways, turns, work):
    """Each way's record, with lists of its times, and the maps of the first turn: both by the name of the way.

    `turns` says how often each way runs. A way that failed does not run again.
    """
    records, maps = {}, {}
    for turn in range(max(turns.values(), default=0)):
        for name, way in ways.items():
            if turn >= turns[name] or (turn > 0 and name not in maps):
                continue
            folder = work / name.replace(' ', '_').replace(',', '_')
            folder.mkdir(parents=True, exist_ok=True)
            record, mapping = way.register(pair, folder)
            times = {field: [record.pop(field)] for field in ('seconds', 'server_ms') if field in record}
            if turn == 0:
                records[name] = {**record, **times}
                if mapping is not None:
                    maps[name] = mapping
            elif mapping is None:
                records[name] = record
                del maps[name]
            else:
                for field, values in times.items():
                    records[name][field] += values
    return records, maps


def with_figures(pair, records, maps):
    """The records with what the truth and the field say of each map; on all cores, after the times were taken."""
    with concurrent.futures.ProcessPoolExecutor(methods.usable_cores()) as pool:
        figures = {name: pool.submit(table.figures_of, pair, mapping) for name, mapping in maps.items()}
        return {name: {**record, **(figures[name].result() if name in figures else {})}
                for name, record in records.items()}


def chosen_pairs(arguments):
    prepared = arguments.out / 'prepared'
    prepared.mkdir(parents=True, exist_ok=True)
    for pair in itertools.chain.from_iterable(family(arguments.data, prepared) for family in FAMILIES):
        if any(part in pair.name for part in arguments.pairs.split(',')):
            yield pair


def turns_of(arguments):
    """How often each chosen way runs, by its name, ours first."""
    turns = dict.fromkeys(OURS, arguments.turns)
    if arguments.peers:
        turns |= dict.fromkeys(peers_here(), arguments.peer_turns)
    unknown = set(arguments.ways) - set(turns)
    if unknown:
        raise methods.Failed(f'{", ".join(sorted(unknown))} is not among the ways: {", ".join(turns)}')
    return {name: count for name, count in turns.items() if name in (arguments.ways or turns)}


def register_pair(arguments, binaries, cores, pair, turns):
    """The records of one pair on so many cores, by way, with a server of its own; figures come after the times."""
    with pinned(cores):
        started = time.monotonic()
        with methods.server(binaries, 'cpu', arguments.out / 'server.log') as (address, _):
            start_s = time.monotonic() - started
            command_line = answers.CommandLine(binaries / 'intrawarp', address)
            ways = {name: table.Ours(command_line, options) for name, options in OURS.items()}
            ways |= {name: table.Theirs(peer) for name, peer in peers_here().items()}
            records, maps = in_turns(pair, {name: ways[name] for name in turns}, turns, arguments.out / 'work')
    return {name: {**record, 'start_s': start_s} if name in OURS else record
            for name, record in with_figures(pair, records, maps).items()}


def measure(arguments, binaries, done):
    turns = turns_of(arguments)
    for cores in arguments.cores:
        for pair in chosen_pairs(arguments):
            missing = {name: count for name, count in turns.items() if not done.has(cores, pair.name, name)}
            if not missing:
                continue
            records = register_pair(arguments, binaries, cores, pair, missing)
            for name, record in records.items():
                done.add({'cores': cores, 'pair': pair.name, 'way': name, **record})
            print(f'{cores} cores: {pair.name}', file=sys.stderr, flush=True)


def accuracy(record):
    """More is better: minus the mean error at the landmarks, mm, or Dice. None where there is neither."""
    return -record['error'] if 'error' in record else record.get('dice')


def truth_text(record):
    if 'error' in record:
        return f'{record["error"]:.2f} / {record["error_max"]:.1f} mm'
    return f'Dice {record["dice"]:.3f}' if 'dice' in record else ''


def fold_text(record):
    return f'{100 * record["folded"]:.2f} %, {record["min_det"]:.2f}' if 'folded' in record else ''


def same_or_each(words):
    """The one text, where all are alike; otherwise each, in its order."""
    return ' or '.join(dict.fromkeys(word for word in words if word))


def time_text(record):
    if record is None:
        return ''
    if 'failed' in record:
        return record['failed'].replace('|', '/')
    server = f' ({statistics.median(record["server_ms"]) / 1000:.2f})' if 'server_ms' in record else ''
    return f'{statistics.median(record["seconds"]):.2f}{server}'


def by_row(records):
    """{(pair, way): {cores: record}}, in the order of the records."""
    rows = {}
    for record in records:
        rows.setdefault((record['pair'], record['way']), {})[record['cores']] = record
    return rows


def times_table(records):
    """Seconds of the whole program, and of the server in brackets; medians of the turns."""
    numbers = sorted({record['cores'] for record in records})
    titles = ['pair', 'way', *(f'{number} core{"s" * (number > 1)}: s' for number in numbers), 'turns', 'truth',
              'folds, least det', 'verdict']
    yield '| ' + ' | '.join(titles) + ' |'
    yield '|---' * len(titles) + '|'
    for (pair, way), row in by_row(records).items():
        given = [row[number] for number in numbers if number in row]
        cells = [pair, way, *(time_text(row.get(number)) for number in numbers),
                 same_or_each(str(len(record.get('seconds', []))) for record in given),
                 same_or_each(map(truth_text, given)), same_or_each(map(fold_text, given)),
                 same_or_each(record.get('verdict', '') for record in given)]
        yield '| ' + ' | '.join(cells) + ' |'


def match(peer, ours):
    """Our fastest way that is at least as accurate as the peer: (way, record), or None."""
    as_good = {way: record for way, record in ours.items() if accuracy(record) >= accuracy(peer)}
    return min(as_good.items(), key=lambda item: statistics.median(item[1]['seconds']), default=None)


def equal_table(records):
    """Each peer beside our fastest way that is at least as accurate, whole programs, by pair and number of cores."""
    yield '| pair | cores | peer | its truth | its s | ours, at least as accurate | its truth | its s | times as fast |'
    yield '|---' * 9 + '|'
    whole = [record for record in records if accuracy(record) is not None]
    for record in (record for record in whole if record['way'] not in OURS):
        ours = {other['way']: other for other in whole if other['way'] in OURS
                and (other['pair'], other['cores']) == (record['pair'], record['cores'])}
        found = match(record, ours)
        seconds = statistics.median(record['seconds'])
        cells = [record['pair'], str(record['cores']), record['way'], truth_text(record), f'{seconds:.2f}']
        if found is None:
            cells += ['none', '', '', '']
        else:
            own = statistics.median(found[1]['seconds'])
            cells += [found[0], truth_text(found[1]), f'{own:.2f}', f'{seconds / own:.1f}']
        yield '| ' + ' | '.join(cells) + ' |'


def in_order(records):
    """By pair, ours before the peers, then by way and number of cores; runs beside each other leave them mixed."""
    place = {way: number for number, way in enumerate(OURS)}
    return sorted(records, key=lambda record: (record['pair'], place.get(record['way'], len(OURS)), record['way'],
                                               record['cores']))


def summarise(records, out):
    records = in_order(records)
    starts = [record['start_s'] for record in records if 'start_s' in record]
    text = '\n'.join([*times_table(records), '', *equal_table(records)])
    if starts:
        text += f'\n\nThe server, started before: {min(starts):.2f} to {max(starts):.2f} s.'
    (out / 'table.md').write_text(text + '\n', encoding='utf-8')
    print(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', required=True, type=pathlib.Path, help='folder with intrawarpd and intrawarp')
    parser.add_argument('--data', type=pathlib.Path, default=os.environ.get('INTRAWARP_TEST_DATA'))
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/cores'))
    parser.add_argument('--cores', type=lambda words: [int(word) for word in words.split(',')],
                        default=sorted({1, methods.usable_cores()}), help='numbers of cores, by comma')
    parser.add_argument('--turns', type=int, default=3, help='how often each way of ours runs')
    parser.add_argument('--peers', action='store_true')
    parser.add_argument('--peer_turns', type=int, help='how often each peer runs; default: as often as ours')
    parser.add_argument('--ways', type=lambda words: words.split('|'), default=[], help='the ways to run, by |')
    parser.add_argument('--pairs', default='lapirn,liver dataset18 cyc_1_10',
                        help='substrings of the names of the pairs to run, by comma')
    parser.add_argument('--summary', action='store_true', help='only the tables of what was run before')
    arguments = parser.parse_args()
    arguments.peer_turns = arguments.peer_turns or arguments.turns
    if arguments.data is None and not arguments.summary:
        parser.error('neither --data nor INTRAWARP_TEST_DATA is set')
    if min(arguments.cores) < 1 or max(arguments.cores) > methods.usable_cores() and not arguments.summary:
        parser.error(f'--cores: this machine lets the program use 1 to {methods.usable_cores()}')
    if min(arguments.turns, arguments.peer_turns) < 1:
        parser.error('--turns and --peer_turns are at least 1')
    return arguments


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / 'results.jsonl'
    try:
        if not arguments.summary:
            binaries = methods.find_binaries(arguments.bin)
            settings = {'program': results.program_of(binaries), 'data': str(arguments.data)}
            measure(arguments, binaries, results.Results(path, settings, ('cores', 'pair', 'way')))
    except methods.Failed as reason:
        print(f'tests/accuracy/run_cores: {reason}', file=sys.stderr)
        return 1
    summarise([record for record in results.read(path)[1] if 'way' in record], arguments.out)
    return 0


if __name__ == '__main__':
    sys.exit(main())
