# SPDX-License-Identifier: Apache-2.0
"""What cores.py counts, in which order it runs, and which of our ways it sets beside a peer."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import cores
import mappings
import methods

SEEN = 'import os; print(len(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])'


class Way:
    """Takes 1 s, 2 s, ... as it is called; fails from the call `fails_at` on."""

    def __init__(self, name, calls, fails_at=99):
        self.name, self._calls, self._fails_at, self._count = name, calls, fails_at, 0

    def register(self, _, work):
        self._calls.append(self.name)
        self._count += 1
        if not work.is_dir():
            raise AssertionError('no folder to work in')
        if self._count >= self._fails_at:
            return {'failed': 'too dark'}, None
        return {'seconds': float(self._count), 'verdict': 'ok'}, f'map {self._count}'


def record(way, seconds, number=1, **values):
    own = {'server_ms': [500 * s for s in seconds], 'verdict': 'ok', 'start_s': 0.2} if way in cores.OURS else {}
    return {'cores': number, 'pair': 'p', 'way': way, 'seconds': seconds, **own, **values}


def rows(lines):
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in list(lines)[2:]]


class Cores(unittest.TestCase):

    def test_programs_see_one_core_and_one_thread(self):
        cores_before, environment_before = os.sched_getaffinity(0), dict(os.environ)
        with cores.pinned(1):
            seen = subprocess.run([sys.executable, '-c', SEEN], capture_output=True, text=True, check=True).stdout
            self.assertEqual(methods.usable_cores(), 1)
        self.assertEqual(seen.split(), ['1', '1'])
        self.assertEqual((os.sched_getaffinity(0), dict(os.environ)), (cores_before, environment_before))


class Turns(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.calls = []

    def run_ways(self, turns, **fails_at):
        ways = {name: Way(name, self.calls, fails_at.get(name, 99)) for name in turns}
        return cores.in_turns(None, ways, turns, self.work)

    def test_ways_take_turns(self):
        records, maps = self.run_ways({'a,b': 3, 'c d': 1})
        self.assertEqual(self.calls, ['a,b', 'c d', 'a,b', 'a,b'])
        self.assertEqual(records['a,b'], {'verdict': 'ok', 'seconds': [1, 2, 3]})
        self.assertEqual(records['c d']['seconds'], [1])
        self.assertEqual(maps, {'a,b': 'map 1', 'c d': 'map 1'})

    def test_a_way_that_fails_has_no_times_and_no_map(self):
        for at in (1, 2):
            self.calls.clear()
            records, maps = self.run_ways({'a': 3, 'b': 3}, a=at)
            self.assertEqual(self.calls.count('a'), at)
            self.assertEqual(records['a'], {'failed': 'too dark'})
            self.assertEqual((len(records['b']['seconds']), list(maps)), (3, ['b']))

    def test_errors_are_those_of_the_map(self):
        points = np.zeros((2, 3))
        path = self.work / 'flat.nii'
        cores.pairs.write_lps(path, np.zeros((8, 7, 3), dtype=np.float32), np.eye(4))
        pair = cores.pairs.Pair('p', 'ssd', path, path, fixed_points=points, moving_points=points + [3, 4, 0])
        records = cores.with_figures(pair, {'a': {'seconds': [1.0]}, 'b': {'failed': 'x'}},
                                     {'a': mappings.Affine(np.eye(4))})
        self.assertEqual((records['a']['error'], records['a']['seconds'], records['b']), (5, [1.0], {'failed': 'x'}))


class Ways(unittest.TestCase):

    def arguments(self, ways, peers):
        return argparse.Namespace(ways=ways, peers=peers, turns=3, peer_turns=1)

    def test_are_ours_and_with_peers_theirs(self):
        self.assertEqual(cores.turns_of(self.arguments([], False)), dict.fromkeys(cores.OURS, 3))
        self.assertEqual(cores.turns_of(self.arguments(['elastix B-spline', 'auto'], True)),
                         {'auto': 3, 'elastix B-spline': 1})

    def test_that_are_unknown_are_named(self):
        with self.assertRaisesRegex(methods.Failed, 'elastix B-spline is not among the ways: affine, '):
            cores.turns_of(self.arguments(['auto', 'elastix B-spline'], False))


class Tables(unittest.TestCase):

    def test_hold_medians_by_number_of_cores(self):
        found = rows(cores.times_table([
            record('auto', [4, 9, 2], dice=0.8, folded=0.0, min_det=0.1),
            record('auto', [2, 1, 3], 4, dice=0.8, folded=0.0, min_det=0.1),
            record('peer', [8], error=2.5, error_max=9.04, folded=0.0123, min_det=-2.0),
            {'cores': 4, 'pair': 'p', 'way': 'peer', 'failed': 'exit 1: a|b'}]))
        self.assertEqual(found, [
            ['p', 'auto', '4.00 (2.00)', '2.00 (1.00)', '3', 'Dice 0.800', '0.00 %, 0.10', 'ok'],
            ['p', 'peer', '8.00', 'exit 1: a/b', '1 or 0', '2.50 / 9.0 mm', '1.23 %, -2.00', '']])

    def test_are_in_the_same_order_after_runs_beside_each_other(self):
        mixed = [record(way, [1], number)
                 for way, number in (('x', 4), ('auto', 4), ('x', 1), ('affine', 4), ('auto', 1))]
        self.assertEqual([(r['way'], r['cores']) for r in cores.in_order(mixed)],
                         [('affine', 4), ('auto', 1), ('auto', 4), ('x', 1), ('x', 4)])

    def test_an_answer_that_depends_on_the_cores_shows(self):
        found = rows(cores.times_table([record('auto', [1], dice=0.8), record('auto', [1], 2, dice=0.81)]))
        self.assertEqual(found[0][5], 'Dice 0.800 or Dice 0.810')

    def test_a_peer_stands_beside_the_fastest_way_that_is_as_accurate(self):
        found = rows(cores.equal_table([
            record('affine', [1], error=9.0, error_max=20), record('affine,ffd', [5], error=2.0, error_max=7),
            record('auto', [4, 4, 30], error=1.8, error_max=6), record('auto', [2], 4, error=1.8, error_max=6),
            record('slow', [8], error=2.0, error_max=7), record('slow', [3], 4, error=2.0, error_max=7),
            record('best', [8], error=1.7, error_max=7), {'cores': 1, 'pair': 'p', 'way': 'broken', 'failed': 'x'}]))
        self.assertEqual([(row[1], row[2], row[5], row[8]) for row in found],
                         [('1', 'slow', 'auto', '2.0'), ('4', 'slow', 'auto', '1.5'), ('1', 'best', 'none', '')])

    def test_more_dice_and_less_error_are_better(self):
        dice, error = record('auto', [1], dice=0.8), record('auto', [1], error=1.0)
        self.assertIsNone(cores.match(record('peer', [1], dice=0.81), {'auto': dice}))
        self.assertEqual(cores.match(record('peer', [1], error=1.1), {'auto': error}), ('auto', error))


if __name__ == '__main__':
    unittest.main()
