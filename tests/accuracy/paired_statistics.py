# SPDX-License-Identifier: Apache-2.0
"""Comparisons of ways to register over the same pairs: Wilcoxon's signed-rank test, Holm's correction, bootstrap."""

import dataclasses

import numpy as np
from scipy import stats

RESAMPLES = 10000


@dataclasses.dataclass
class Comparison:
    """Of a way with a reference; `difference` is way - reference, its interval holds the true median with 95 %."""

    name: str
    count: int
    median: float
    reference_median: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float = float('nan')


def signed_rank(differences):
    """Two-sided p of Wilcoxon 1945; pairs without a difference are left out, and 1 where none is left.

    Exact for up to 50 differences without ties (scipy's choice), the normal approximation otherwise.
    """
    kept = np.asarray(differences, dtype=float)
    kept = kept[kept != 0]
    return float(stats.wilcoxon(kept).pvalue) if len(kept) else 1.0


def holm(p_values):
    """Step-down adjusted p (Holm 1979): the k-th smallest times the number of those not smaller, never decreasing."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind='stable')
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, stepped)
    return adjusted


def median_interval(differences, seed=1):
    """The percentile bootstrap's 95 % interval of the median."""
    values = np.asarray(differences, dtype=float)
    random = np.random.default_rng(seed)
    medians = np.median(values[random.integers(len(values), size=(RESAMPLES, len(values)))], axis=1)
    return tuple(float(limit) for limit in np.percentile(medians, [2.5, 97.5]))


def compare(reference, others):
    """`reference` and each of `others` (by name): values by pair. Only pairs that both have count."""
    comparisons = []
    for name, values in others.items():
        shared = sorted(set(reference) & set(values))
        if not shared:
            continue
        mine, theirs = (np.array([source[pair] for pair in shared]) for source in (values, reference))
        low, high = median_interval(mine - theirs)
        comparisons.append(Comparison(name, len(shared), float(np.median(mine)), float(np.median(theirs)),
                                      float(np.median(mine - theirs)), low, high, signed_rank(mine - theirs)))
    for comparison, p in zip(comparisons, holm([c.p for c in comparisons])):
        comparison.p_holm = float(p)
    return comparisons


def table(title, reference_name, comparisons):
    """Markdown: one row a way."""
    yield f'| {title} | pairs | median | of {reference_name} | median difference [95 %] | p, Wilcoxon | p, Holm |'
    yield '|---' * 7 + '|'
    for c in comparisons:
        yield (f'| {c.name} | {c.count} | {c.median:.3g} | {c.reference_median:.3g} | '
               f'{c.difference:+.3g} [{c.low:+.3g}, {c.high:+.3g}] | {c.p:.2g} | {c.p_holm:.2g} |')
