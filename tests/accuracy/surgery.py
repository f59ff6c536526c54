# SPDX-License-Identifier: Apache-2.0
"""Registers phantoms of operations in several ways, and measures what a hole costs around it. See run_surgery."""

import argparse
import json
import pathlib
import sys

import nibabel
import numpy as np

import mappings
import methods
import nonrigid_peers
import pairs
import svg

RODS = ['--kind=plain', '--rods=8']
# The words of `intrawarp phantom`; --kind=NAME where there are none.
KINDS = {'resection': [], 'ablation': [], 'sliding': [], 'needle': [], 'gas': [], 'truncation': [],
         'truncation 0': ['--kind=truncation', '--padding=0'], 'rods': [*RODS, '--outliers_in=both'],
         'rods fixed': [*RODS, '--outliers_in=fixed'], 'rods moving': [*RODS, '--outliers_in=moving']}
OURS = {'auto': [],
        'auto, find missing': ['--find_missing_tissue'],
        'search,ffd': ['--method=search,ffd', '--metric=lncc', '--spacing_vox=3', '--bending_weight=0.05',
                       '--total_variation_weight=0.1', '--keep_deformation'],
        'search,ffd, find missing': ['--method=search,ffd', '--metric=lncc', '--spacing_vox=3', '--bending_weight=0.05',
                                     '--total_variation_weight=0.1', '--keep_deformation', '--find_missing_tissue'],
        'search,ffd, sliding': ['--method=search,ffd', '--metric=ssd', '--spacing_vox=12', '--sliding',
                                '--keep_deformation']}
NEAR_MM, FAR_MM = 10, 20


class Scene:
    """A phantom with its truth, on the voxels of the fixed image."""

    def __init__(self, folder):
        self.fixed, self.moving = folder / 'fixed.nii.gz', folder / 'moving.nii.gz'
        self.image = nibabel.load(self.fixed)
        self.spacing = np.array(self.image.header.get_zooms()[:3], dtype=float)
        field = np.asanyarray(nibabel.load(folder / 'field.nii.gz').dataobj, dtype=np.float32)
        self.truth = field.reshape(*self.image.shape[:3], 3)
        self.body = read_mask(folder / 'mask.nii.gz')
        self.hole = read_mask(folder / 'hole.nii.gz') if (folder / 'hole.nii.gz').exists() else None
        # How far a voxel is from the hole, or from the wall along which organs slide; mm, 0 within the hole.
        self.distance = np.full(self.body.shape, np.inf)
        if self.hole is not None and self.hole.any():
            self.distance = distance_to(self.hole, self.spacing)
        elif (folder / 'regions.nii.gz').exists():
            regions = np.asanyarray(nibabel.load(folder / 'regions.nii.gz').dataobj)
            # From the nearest voxel on the other side.
            self.distance = np.maximum(distance_to(regions != 2, self.spacing), distance_to(regions == 2, self.spacing))
            self.body = regions > 0


def distance_to(mask, spacing):
    """The distance of every voxel to the nearest one of the mask, mm: exact, one axis after the other."""
    squared = np.where(mask, 0.0, np.inf)
    for axis, side in enumerate(spacing):
        lines = np.moveaxis(squared, axis, -1)
        steps = (side * np.arange(lines.shape[-1])) ** 2
        nearest = np.full(lines.shape, np.inf)
        for i in range(lines.shape[-1]):
            away = steps[np.abs(np.arange(lines.shape[-1]) - i)]
            np.minimum(nearest, lines[..., i, np.newaxis] + away, out=nearest)
        squared = np.moveaxis(nearest, -1, axis)
    return np.sqrt(squared)


def read_mask(path):
    return np.asanyarray(nibabel.load(path).dataobj) > 0.5


def displacement_on(image, mapping):
    """T(x) - x at every voxel, LPS mm: x, y, z, component."""
    planes = []
    for z in range(image.shape[2]):
        points = pairs.plane_points(image, z)
        planes.append((mapping(points) - points).reshape(*image.shape[:2], 3))
    return np.stack(planes, axis=2)


def determinants(image, displacement):
    """Of the gradient of T, by central differences; one-sided at the faces."""
    to_index = np.linalg.inv(pairs.lps_affine(image)[:3, :3])
    gradient = np.zeros((*displacement.shape[:3], 3, 3))
    for axis in range(3):
        gradient += np.gradient(displacement, axis=axis)[..., :, np.newaxis] * to_index[axis]
    return np.linalg.det(np.eye(3) + gradient)


def dice(a, b):
    """1 where both are empty."""
    total = a.sum() + b.sum()
    return 2 * np.logical_and(a, b).sum() / total if total else 1.0


def sampled_nearest(source, image):
    """The values of another grid at the voxels of `image`; NaN outside of it."""
    to_index = np.linalg.inv(pairs.lps_affine(source))
    values = np.asanyarray(source.dataobj).astype(float)
    out = np.full(image.shape[:3], np.nan)
    for z in range(image.shape[2]):
        index = np.floor(pairs.map_points(to_index, pairs.plane_points(image, z)) + 0.5).astype(int)
        inside = np.all((index >= 0) & (index < values.shape[:3]), axis=1)
        plane = np.full(len(index), np.nan)
        plane[inside] = values[tuple(index[inside].T)]
        out[:, :, z] = plane.reshape(image.shape[:2])
    return out


def mean_of(values, where):
    return float(values[where].mean()) if where.any() else None


def figures_of(scene, displacement):
    """Errors in mm by place, and the Jacobian beside the hole; a voxel around the hole is left out."""
    error = np.linalg.norm(displacement - scene.truth, axis=-1)
    outside = scene.body & (scene.distance > scene.spacing.max())
    near = outside & (scene.distance <= NEAR_MM + scene.spacing.max())
    figures = {'outside': mean_of(error, outside), 'outside_p95': float(np.quantile(error[outside], 0.95)),
               'near': mean_of(error, near), 'far': mean_of(error, scene.body & (scene.distance > FAR_MM)),
               'far_max': float(error[scene.body & (scene.distance > FAR_MM)].max())}
    if scene.hole is not None:
        figures['inside'] = mean_of(error, scene.hole & scene.body)
    if near.any():
        determinant = determinants(scene.image, displacement)
        figures.update(least_jacobian=float(determinant[near].min()), most_jacobian=float(determinant[near].max()))
    return figures


def change_of(scene, displacement, of_intact):
    """What the hole, the instruments or the end change in a result far from them: mm between both results."""
    change = np.linalg.norm(displacement - of_intact, axis=-1)[scene.body & (scene.distance > FAR_MM)]
    if not change.size:
        return {}
    return {'far_change': float(change.mean()), 'far_change_p95': float(np.quantile(change, 0.95))}


def covered(error, bound, where):
    """The part of the voxels with a bound whose error lies below it."""
    known = where & np.isfinite(bound)
    return float((error[known] <= bound[known]).mean()) if known.any() else None


class Ours:
    def __init__(self, binaries, address, name):
        self.name = name
        self._program = [binaries / 'intrawarp', f'--server={address}']
        self._options = OURS[name]

    def run(self, scene, work):
        """The figures, and the displacement at every voxel."""
        report, bound, missing, field = (work / name for name in
                                         ('report.json', 'bound.nii.gz', 'missing.nii.gz', 'field.nii.gz'))
        outputs = [f'--field={field}', f'--report={report}', f'--error_map={bound}']
        if '--find_missing_tissue' in self._options:
            outputs.append(f'--missing_tissue={missing}')
        seconds, output = methods.execute([*self._program, 'register', f'--fixed={scene.fixed}',
                                           f'--moving={scene.moving}', *self._options, *outputs],
                                          work / 'register.log')
        methods.execute([*self._program, 'transform', 'delete', output.split()[-1]], work / 'delete.log')
        displacement = displacement_on(scene.image, mappings.Displacement.read(field))
        error = np.linalg.norm(displacement - scene.truth, axis=-1)
        values = json.loads(report.read_text())
        bounds = sampled_nearest(nibabel.load(bound), scene.image)
        figures = {'seconds': seconds, **figures_of(scene, displacement), 'verdict': values['verdict'],
                   'reasons': values['reasons'], 'optimise_ms': values['latency_ms']['optimise'],
                   'covered_outside': covered(error, bounds, scene.body & (scene.distance > 0)),
                   'covered_inside': covered(error, bounds, scene.body & (scene.distance == 0))}
        if values['missing_tissue'] is not None:
            found = sampled_nearest(nibabel.load(missing), scene.image) > 0.5
            figures['missing_ml'] = values['missing_tissue']['volume_mm3'] / 1000
            if scene.hole is not None:
                figures['dice'] = dice(found, scene.hole)
        return figures, displacement


class Theirs:
    def __init__(self, peer):
        self.name = peer.name
        self._peer = peer

    def run(self, scene, work):
        pair = pairs.Pair('phantom', 'ssd', scene.fixed, scene.moving)
        outcome = self._peer.register(pair, work)
        displacement = displacement_on(scene.image, outcome.mapping)
        return {'seconds': outcome.seconds, **figures_of(scene, displacement)}, displacement


def scenes(arguments, program):
    """(kind, seed, 'hole' or 'intact', Scene)."""
    for kind, options in KINDS.items():
        if arguments.kinds and kind not in arguments.kinds:
            continue
        for seed in range(1, arguments.seeds + 1):
            for state in ('hole', 'intact'):
                if state == 'intact' and kind == 'sliding':
                    continue
                folder = arguments.out / 'phantoms' / f'{kind}-{seed}-{state}'
                words = options or [f'--kind={kind}']
                if state == 'intact':
                    words = [] if words[0] == '--kind=plain' else [*words, '--intact']
                folder.mkdir(parents=True, exist_ok=True)
                methods.execute([program, 'phantom', f'--out={folder}', f'--size={arguments.size}', f'--seed={seed}',
                                 *words], folder / 'phantom.log')
                yield kind, seed, state, Scene(folder)


def measure(arguments, ways):
    records = []
    # The last scene with a hole, its records by way and its results; the same scene without the hole follows it.
    before = None
    for kind, seed, state, scene in scenes(arguments, arguments.bin / 'intrawarp'):
        results = {}
        for way in ways:
            work = arguments.out / 'work'
            work.mkdir(exist_ok=True)
            record = {'kind': kind, 'seed': seed, 'state': state, 'way': way.name}
            try:
                figures, displacement = way.run(scene, work)
                results[way.name] = record, displacement
                record.update(figures)
            except methods.Failed as reason:
                record['failed'] = str(reason)
            if state == 'intact' and way.name in before[1] and way.name in results:
                holes, with_hole = before[1][way.name]
                holes.update(change_of(before[0], with_hole, displacement))
            records.append(record)
            print(json.dumps(record), flush=True)
        before = scene, results
    return records


def mean(records, field):
    values = [record[field] for record in records if record.get(field) is not None]
    return float(np.mean(values)) if values else None


def text(value, digits=2):
    return '' if value is None else f'{value:.{digits}f}'


def table(records):
    yield ('| kind | method | outside, mm | 95 % | of intact | within 10 mm | beyond 20 mm '
           '| changed there, mean / 95 % | inside | Jacobian beside it | Dice | bound holds outside / inside '
           '| verdicts | s |')
    yield '|---' * 14 + '|'
    for kind, way in dict.fromkeys((record['kind'], record['way']) for record in records):
        chosen = [record for record in records if (record['kind'], record['way']) == (kind, way)]
        holes, intact = ([r for r in chosen if r['state'] == state and 'failed' not in r] for state in ('hole', 'intact'))
        if not holes:
            yield f'| {kind} | {way} | failed |' + ' |' * 11
            continue
        whole = mean(intact, 'outside')
        ratio = mean(holes, 'outside') / whole if whole else None
        jacobian = '' if mean(holes, 'least_jacobian') is None else (
            f'{min(r["least_jacobian"] for r in holes):.2f} to {max(r["most_jacobian"] for r in holes):.1f}')
        change = ' / '.join(text(mean(holes, field)) for field in ('far_change', 'far_change_p95'))
        coverage = ' / '.join(text(mean(holes, f'covered_{where}')) or '-' for where in ('outside', 'inside'))
        verdicts = ', '.join(sorted({r['verdict'] for r in holes if 'verdict' in r}))
        yield (f'| {kind} | {way} | {text(mean(holes, "outside"))} | {text(mean(holes, "outside_p95"))} | {text(ratio)} | '
               f'{text(mean(holes, "near"))} | {text(mean(holes, "far"))} | {change.strip(" /")} | '
               f'{text(mean(holes, "inside"))} | {jacobian} | '
               f'{text(mean(holes, "dice"))} | {coverage if verdicts else ""} | {verdicts} | '
               f'{text(mean(holes, "seconds"), 1)} |')


def draw(records, path):
    """By kind: the error within 10 mm of the hole or the wall, a line for each way over the places."""
    charts = []
    for kind in dict.fromkeys(record['kind'] for record in records):
        lines = []
        for way in dict.fromkeys(record['way'] for record in records):
            holes = [r for r in records if (r['kind'], r['way'], r['state']) == (kind, way, 'hole') and 'failed' not in r]
            places = [(i, mean(holes, field)) for i, field in enumerate(('inside', 'near', 'outside', 'far'))]
            lines.append(svg.Line(way, [(x, y) for x, y in places if y is not None]))
        top = max((y for line in lines for _, y in line.points), default=1)
        charts.append(svg.Chart(kind, 'in it, within 10 mm, outside, beyond 20 mm', (0, 3), lines,
                                y_title='mean error, mm', y_range=(0, float(np.ceil(top)))))
    svg.write(path, charts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--bin', type=pathlib.Path, required=True)
    parser.add_argument('--device', default='auto')
    parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('build/surgery'))
    parser.add_argument('--size', default='80x80x60')
    parser.add_argument('--seeds', type=int, default=2)
    parser.add_argument('--kinds', type=lambda words: words.split(','), default=[])
    parser.add_argument('--ways', type=lambda words: words.split('|'), default=list(OURS))
    parser.add_argument('--peers', action='store_true')
    parser.add_argument('--summary', action='store_true')
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / 'results.json'
    if not arguments.summary:
        with methods.server(arguments.bin, arguments.device, arguments.out / 'server.log') as (address, device):
            print(f'device {device}', flush=True)
            ways = [Ours(arguments.bin, address, name) for name in arguments.ways]
            if arguments.peers:
                ways += [Theirs(peer) for peer in nonrigid_peers.available()]
            results.write_text(json.dumps(measure(arguments, ways), indent=1), encoding='utf-8')
    records = json.loads(results.read_text(encoding='utf-8'))
    lines = '\n'.join(table(records))
    (arguments.out / 'table.md').write_text(lines + '\n', encoding='utf-8')
    draw(records, arguments.out / 'surgery.svg')
    print(lines)
    return 0


if __name__ == '__main__':
    sys.exit(main())
