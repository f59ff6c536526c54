# SPDX-License-Identifier: Apache-2.0
"""What the harnesses count, and how a run that was ended goes on."""

import pathlib
import tempfile
import unittest
from xml.etree import ElementTree

import numpy as np

import answers
import methods
import results
import robustness
import svg
import verdict_cases
import verdicts


def record(seed, kind, amplitude, error_vox, verdict, way='intrawarp'):
    return {'way': way, 'seed': seed, 'kind': kind, 'amplitude': amplitude, 'mean_vox': error_vox, 'verdict': verdict,
            'class': robustness.class_of(error_vox, verdict), 'min_det': 0.5}


class Classes(unittest.TestCase):

    def test_follow_from_error_and_verdict(self):
        self.assertEqual([robustness.class_of(error, verdict) for error, verdict in
                          ((1.9, 'ok'), (1.9, 'review'), (2.0, 'review'), (2.0, 'ok'), (None, 'refused'))],
                         ['success', 'false alarm', 'refused', 'silent failure', 'refused'])

    def test_are_counted_by_kind_and_amplitude(self):
        records = [record(i, 'motion', 10 + 2.5 * i, 3 if i >= 16 else 1, 'ok') for i in range(20)]
        lines = list(robustness.table(records, 'intrawarp'))
        rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| motion')]
        self.assertEqual(len(rows), robustness.BINS)
        self.assertEqual([row[6] for row in rows], ['0', '0', '0', '0', '4'])  # silent failures
        self.assertEqual(sum(int(row[1]) for row in rows), 20)


    def test_a_stage_that_leaves_the_affine_part_for_worse_is_counted(self):
        records = [{**record(i, 'noise', 5, error, 'ok'), 'affine_vox': affine}
                   for i, (error, affine) in enumerate([(1.2, 0.5), (0.6, 0.5), (0.1, 3)])]
        self.assertEqual([robustness.spoiled(r) for r in records], [True, False, False])
        total = list(robustness.table(records, 'intrawarp'))[-2]
        self.assertEqual(total.split('|')[-3].strip(), '1')


class Files(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / 'results.jsonl'

    def test_a_run_goes_on_where_it_ended(self):
        first = results.Results(self.path, {'program': 'a'}, ('way', 'seed'))
        first.add({'way': 'x', 'seed': 1})
        with open(self.path, 'a', encoding='utf-8') as file:
            file.write('{"way": "x", "se')  # the process ended here
        second = results.Results(self.path, {'program': 'a'}, ('way', 'seed'))
        self.assertTrue(second.has('x', 1))
        self.assertFalse(second.has('x', 2))
        second.add({'way': 'x', 'seed': 2})
        self.assertEqual(len(results.Results(self.path, {'program': 'a'}, ('way', 'seed')).records), 2)

    def test_another_program_does_not_go_on(self):
        results.Results(self.path, {'program': 'a'}, ('key',))
        with self.assertRaises(methods.Failed):
            results.Results(self.path, {'program': 'b'}, ('key',))

    def test_the_plot_is_well_formed(self):
        records = [record(i, 'shift', i, 1, 'ok') for i in range(9)] + [record(9, 'noise', 4, 5, 'ok')]
        svg.write(self.path, list(robustness.charts(records)))
        lines = ElementTree.parse(self.path).getroot().iter('{http://www.w3.org/2000/svg}polyline')
        self.assertEqual(len(list(lines)), 4)  # right and silently wrong, for two kinds


class Verdicts(unittest.TestCase):

    def test_are_counted_against_the_labels(self):
        outcomes = [(True, 'ok'), (True, 'review'), (False, 'ok'), (False, 'review'), (False, 'review'),
                    (None, 'refused')]
        records = [{'key': str(i), 'family': 'f', 'way': 'w', 'good': good, 'verdict': verdict}
                   for i, (good, verdict) in enumerate(outcomes)]
        self.assertEqual(verdicts.counts_of(records), [1, 1, 1, 2, 1])
        self.assertIn('2 good, 3 bad: 1 of the bad ones are ok (33.3 %), 1 of the good ones are review (50.0 %)',
                      verdicts.conclusion(records))
        before = {record['key']: {**record, 'verdict': 'ok'} for record in records[:3]}
        total = list(verdicts.table(records, before))[-1]
        self.assertEqual([cell.strip() for cell in total.strip('|').split('|')][1:],
                         ['6', '1', '1', '1', '2', '1', '2', '0', '1', '0', '0'])

    def test_bounds_are_held_against_the_truth(self):
        task = verdict_cases.Task(None, None, None, places=(np.zeros((4, 3)), np.zeros((4, 3))))
        answer = answers.Answer(0, {}, lambda points: points + [[1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0]])
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            np.savetxt(work / 'errors.csv', [[0, 0, 0, 2, 3, 9]] * 4, delimiter=',', header='x', comments='')
            figures = verdicts.held_against_truth(task, answer, work)
        self.assertEqual((figures['places'], figures['below_bound'], figures['true_mean']), (4, 0.75, 2.5))
        self.assertEqual((figures['expected_mean'], figures['bound_median']), (2, 3))
        records = [{'family': 'livers', 'verdict': verdict, 'predicted': {**figures, 'below_bound': share}}
                   for verdict, share in (('ok', 1.0), ('review', 0.5))]
        self.assertEqual([cell.strip() for cell in list(verdicts.bound_table(records))[-1].strip('|').split('|')],
                         ['**all**', '2', '2.50', '2.00', '3.0', '75.0', '1', '100.0'])
        names = [line.name for line in verdicts.bound_chart(records).lines if line.points]
        self.assertEqual(names, ['livers, landmarks', 'bound = error'])

    def test_that_do_not_fit_are_named(self):
        records = [{'key': 'a', 'good': False, 'verdict': 'ok', 'mean_vox': 12.5, 'reasons': []},
                   {'key': 'b', 'good': True, 'verdict': 'review', 'dice': 0.5, 'reasons': ['not converged']},
                   {'key': 'c', 'good': True, 'verdict': 'ok', 'reasons': []}]
        self.assertEqual(list(verdicts.wrong(records)), ['bad, ok: a: 12.50 voxels; ',
                                                         'good, review: b: Dice 0.500; not converged'])

    def test_the_set_is_large_and_its_keys_are_unique(self):
        makers = verdict_cases.Makers(None, None, pathlib.Path())
        families = (verdict_cases.known, verdict_cases.turned, verdict_cases.wrong_starts, verdict_cases.noise,
                    verdict_cases.without_counterpart, verdict_cases.wrong_metrics, verdict_cases.unrelated,
                    verdict_cases.livers)
        keys = [entry.key for family in families for entry in family(makers)]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertGreater(len(keys), 500)
