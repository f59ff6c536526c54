#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the verdicts that verdict_fields wrote: false ok and false review by field, by way and by family.

    tests/accuracy/verdict_fields.py RESULT.jsonl... [--before=EARLIER.jsonl,...] [--wrong]

A registration of an unrelated pair is falsely ok when its verdict is ok. One of a known pair is falsely ok when its true
error is above its limit, and falsely for review when it is not. With --before only registrations that both programs ran
are counted, the earlier one's counts beside the others. --wrong lists them.
"""

import argparse
import json
import sys


def read(paths):
    """The records by key. A line that was cut short is left out."""
    records = {}
    for path in paths:
        with open(path, encoding='utf-8') as file:
            for line in file:
                if line.endswith('}\n'):
                    record = json.loads(line)
                    records[record['key']] = record
    return records


def label_of(record):
    """'unrelated', 'good' or 'bad'; None for a known pair without a result or a truth."""
    if record['side'] == 'unrelated':
        return 'unrelated'
    if 'good' not in record:
        return None
    return 'good' if record['good'] else 'bad'


def counts_of(records):
    """Unrelated pairs and those that are ok; bad answers and those that are ok; good ones and those for review."""
    counts = []
    for label, verdict in (('unrelated', 'ok'), ('bad', 'ok'), ('good', 'review')):
        chosen = [record for record in records if label_of(record) == label]
        counts += [len(chosen), sum(record['verdict'] == verdict for record in chosen)]
    return counts


def table(records, before):
    titles = ['unrelated', 'ok', 'bad', 'ok', 'good', 'review']
    yield '| | ' + ' | '.join(titles + ([f'{title}, before' for title in titles] if before else [])) + ' |'
    yield '|---' * (1 + len(titles) * (2 if before else 1)) + '|'
    groups = {'all': list(records)}
    for field in ('field', 'way', 'family'):
        for key in sorted(records, key=lambda key: (str(records[key]['side']), records[key][field])
                          if field == 'family' else records[key][field]):
            value = records[key][field]
            name = f'{value:g} mm' if field == 'field' else (f'{records[key]["side"]}: {value}' if field == 'family'
                                                             else value)
            groups.setdefault(name, []).append(key)
    for name, keys in groups.items():
        numbers = counts_of([records[key] for key in keys])
        if before:
            numbers += counts_of([before[key] for key in keys])
        yield f'| {name} | ' + ' | '.join(map(str, numbers)) + ' |'


def wrong(records):
    for record in records.values():
        label = label_of(record)
        if (label, record['verdict']) in (('unrelated', 'ok'), ('bad', 'ok'), ('good', 'review')):
            error = f'{record["mean"]:.2f} mm (95 % {record["p95"]:.2f})' if 'mean' in record else 'no truth'
            yield (f'{label}, {record["verdict"]}: {record["key"]}: {record["family"]}, {record["field"]:g} mm: {error}, '
                   f'expected {record.get("expected", float("nan")):.2f}; {record.get("reasons", "")}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', nargs='+')
    parser.add_argument('--before', default='')
    parser.add_argument('--wrong', action='store_true')
    arguments = parser.parse_args()
    records = read(arguments.results)
    before = read(arguments.before.split(',')) if arguments.before else None
    if before is not None:
        records = {key: record for key, record in records.items() if key in before}
    print('\n'.join(wrong(records) if arguments.wrong else table(records, before)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
