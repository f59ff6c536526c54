# SPDX-License-Identifier: Apache-2.0
"""One registration through the command line: the report and the map, or the refusal, as plain values."""

import dataclasses
import json
import re
import subprocess
import time

import numpy as np

import mappings

# A registration that takes longer is stopped and counts as failed.
LIMIT_S = 300
# The status that says that the images do not allow a registration; another one is a failure of the program.
REFUSAL = 'FAILED_PRECONDITION'


@dataclasses.dataclass
class Answer:
    """Either `report` and `mapping` are set, or `error` is."""

    seconds: float
    report: dict | None = None
    mapping: object = None
    error: str = ''

    @property
    def refused(self):
        return REFUSAL in self.error

    def affine_part(self):
        """Of the map: what a deformable stage started from."""
        return mappings.Affine(np.array(self.report['matrix'], dtype=float).reshape(4, 4))

    @property
    def verdict(self):
        """ok, review, refused (an error that the images explain) or failed."""
        if self.report is None:
            return 'refused' if self.refused else 'failed'
        return self.report['verdict']


class CommandLine:
    """`intrawarp register` on a running server."""

    def __init__(self, program, address):
        self._command = [str(program), f'--server={address}']

    def register(self, fixed, moving, options, work, dense=True):
        """`dense`: the mapping is the field on the fixed grid; otherwise the affine part alone."""
        report, field = work / 'report.json', work / 'field.nii'
        command = [*self._command, 'register', f'--fixed={fixed}', f'--moving={moving}', *options,
                   f'--report={report}', *([f'--field={field}'] if dense else [])]
        started = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return Answer(time.monotonic() - started, error=f'took longer than {LIMIT_S} s')
        seconds = time.monotonic() - started
        if done.returncode != 0:
            return Answer(seconds, error=(done.stderr.strip().splitlines() or ['no message'])[-1])
        self.delete(done.stdout.split()[-1])
        answer = Answer(seconds, json.loads(report.read_text()))
        answer.mapping = mappings.Displacement.read(field) if dense else answer.affine_part()
        return answer

    def delete(self, transform):
        subprocess.run([*self._command, 'transform', 'delete', transform], capture_output=True, check=False)

    def methods(self):
        """The words that --method takes, as the help lists them."""
        text = subprocess.run([*self._command, 'register', '--help'], capture_output=True, text=True, check=False)
        line = re.search(r'--method=.*', text.stdout + text.stderr)
        return re.findall(r'[a-z-]+', line.group()) if line else []

    def default_options(self):
        """No method named where the program chooses one; the deformable pipeline where it does not."""
        return [] if 'auto' in self.methods() else ['--method=affine,ffd']


def numbers_of(report):
    """The numbers of a report that a verdict may rest on; matrices and options are left out."""
    kept = dict(report)
    for name in ('matrix', 'options', 'latency_ms'):
        kept.pop(name, None)
    return kept
