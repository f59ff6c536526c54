# SPDX-License-Identifier: Apache-2.0
"""Images with a known map between them: deformations, changes of intensity, cuts. Matrices are 4x4, LPS millimetres.

A pair is made of one image: the fixed image is F(x) = source(D(x)), the moving image is the source under a header that
K moves, so that T = K D takes fixed to moving points. Nothing but F is interpolated.
"""

import dataclasses

import nibabel
import numpy as np
from scipy import ndimage

import pairs

# A deformation whose determinant falls below this is made smoother.
SMALLEST_DETERMINANT = 0.25


@dataclasses.dataclass
class Volume:
    """Voxels, and the map from their indices to LPS mm."""

    voxels: np.ndarray
    affine: np.ndarray

    @classmethod
    def read(cls, path):
        image = nibabel.load(path)
        return cls(np.asanyarray(image.dataobj).astype(np.float32).reshape(image.shape[:3]), pairs.lps_affine(image))

    def write(self, path):
        return pairs.write_lps(path, self.voxels.astype(np.float32), self.affine)

    def points(self):
        """The voxel centres, LPS mm, in the order of voxels.ravel()."""
        indices = np.indices(self.voxels.shape).reshape(3, -1).T.astype(float)
        return pairs.map_points(self.affine, indices)

    def centre(self):
        return pairs.map_points(self.affine, (np.array(self.voxels.shape) - 1) / 2)

    def voxel_mm(self):
        """The geometric mean of the spacings."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) ** (1 / 3))

    def contains(self, points):
        index = pairs.map_points(np.linalg.inv(self.affine), points)
        return np.all((index >= 0) & (index <= np.array(self.voxels.shape) - 1), axis=1)

    def sample(self, points, order=1):
        """Interpolated values; the nearest voxel's outside the grid."""
        index = pairs.map_points(np.linalg.inv(self.affine), points).T
        return ndimage.map_coordinates(self.voxels, index, order=order, mode='nearest')


class Bumps:
    """x + sum of a_i exp(-|x - c_i|^2 / (2 s_i^2)): Gaussian bumps, wide enough not to fold."""

    def __init__(self, centres, vectors, sigmas):
        self._bumps = list(zip(centres, vectors, sigmas))

    @classmethod
    def random(cls, random, volume, amplitude_mm):
        """The largest displacement is `amplitude_mm`; one bump in five directions of the inner half of the volume."""
        extent = np.linalg.norm(volume.affine[:3, :3], axis=0) * (np.array(volume.voxels.shape) - 1)
        directions = random.normal(size=(5, 3))
        vectors = directions / np.linalg.norm(directions, axis=1, keepdims=True) * amplitude_mm
        vectors[1:] *= random.uniform(0.2, 0.5, (4, 1))
        reach = random.uniform(-0.25, 0.25, (5, 3)) * extent
        axes = volume.affine[:3, :3] / np.linalg.norm(volume.affine[:3, :3], axis=0)
        centres = volume.centre() + reach @ axes.T
        sigmas = np.maximum(0.12 * extent.max(), 1.3 * np.linalg.norm(vectors, axis=1))
        coarse = dataclasses.replace(volume, voxels=volume.voxels[::2, ::2, ::2],
                                     affine=volume.affine @ np.diag([2, 2, 2, 1]))
        while True:
            bumps = cls(centres, vectors, sigmas)
            displacement = bumps(coarse.points()) - coarse.points()
            longest = np.linalg.norm(displacement, axis=1).max()
            if longest > 0:
                bumps = cls(centres, vectors * (amplitude_mm / longest), sigmas)
            if smallest_determinant(bumps, coarse) >= SMALLEST_DETERMINANT:
                return bumps
            sigmas = 1.15 * sigmas

    def __call__(self, points):
        moved = points.copy()
        for centre, vector, sigma in self._bumps:
            distance = ((points - centre) ** 2).sum(axis=1)
            moved += np.exp(-distance / (2 * sigma**2))[:, np.newaxis] * vector
        return moved


def smallest_determinant(mapping, volume):
    """Of the Jacobian of a map, by central differences over the voxels of a volume."""
    shape = volume.voxels.shape
    field = mapping(volume.points()).reshape(*shape, 3)
    gradient = np.stack([np.gradient(field, axis=axis) for axis in range(3)], axis=-1)  # component, index axis
    return float((np.linalg.det(gradient) / np.linalg.det(volume.affine[:3, :3])).min())


def rotation_about(axis, degrees, centre):
    """A turn about a line through `centre` (Rodrigues' formula)."""
    x, y, z = np.asarray(axis) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(degrees)
    matrix = np.eye(4)
    matrix[:3, :3] += np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    matrix[:3, 3] = centre - matrix[:3, :3] @ centre
    return matrix


def translation(vector):
    matrix = np.eye(4)
    matrix[:3, 3] = vector
    return matrix


def random_direction(random):
    vector = random.normal(size=3)
    return vector / np.linalg.norm(vector)


def warped(volume, mapping):
    """volume(mapping(x)) on the volume's own grid."""
    values = volume.sample(mapping(volume.points()))
    return dataclasses.replace(volume, voxels=values.reshape(volume.voxels.shape))


def body(volume):
    """The largest connected part brighter than Otsu's threshold of the values, with its holes filled, as a mask."""
    values = ndimage.gaussian_filter(volume.voxels, 1)
    bright = values > otsu(values)
    labels, count = ndimage.label(bright)
    if count == 0:
        return np.ones(volume.voxels.shape, dtype=bool)
    largest = np.argmax(np.bincount(labels.ravel())[1:]) + 1
    return ndimage.binary_fill_holes(labels == largest)


def otsu(values):
    """The threshold that maximises the variance between two classes (Otsu 1979), on 256 bins."""
    count, edges = np.histogram(values, bins=256)
    middle = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(count)[:-1]
    above = count.sum() - below
    sums = np.cumsum(count * middle)
    mean_below = sums[:-1] / np.maximum(below, 1)
    mean_above = (sums[-1] - sums[:-1]) / np.maximum(above, 1)
    return middle[np.argmax(below * above * (mean_below - mean_above) ** 2)]


# Changes of a moving image's intensities. Each keeps the range of the values.


def _scaled(voxels):
    low, high = np.percentile(voxels, [0.5, 99.5])
    return low, max(high - low, 1e-6), np.clip((voxels - low) / max(high - low, 1e-6), 0, 1)


def standardised(values):
    return (values - values.mean()) / values.std()


def gamma(volume, exponent):
    low, span, unit = _scaled(volume.voxels)
    return dataclasses.replace(volume, voxels=low + span * unit**exponent)


def inverted(volume):
    low, span, unit = _scaled(volume.voxels)
    return dataclasses.replace(volume, voxels=low + span * (1 - unit))


def gained(volume, gain, offset):
    """`offset` in units of the range."""
    low, span, _ = _scaled(volume.voxels)
    return dataclasses.replace(volume, voxels=low + gain * (volume.voxels - low) + offset * span)


def biased(volume, random, strength):
    """Multiplies by exp of a smooth random field within +-`strength`."""
    coarse = random.uniform(-1, 1, (3, 3, 3))
    factors = [n / 3 for n in volume.voxels.shape]
    field = ndimage.zoom(coarse, factors, order=3, mode='nearest', grid_mode=True)
    field = field[tuple(slice(0, n) for n in volume.voxels.shape)]
    low = volume.voxels.min()
    return dataclasses.replace(volume, voxels=low + (volume.voxels - low) * np.exp(strength * field))


def noisy(volume, random, fraction):
    """Gaussian, with a standard deviation of `fraction` of the range."""
    span = _scaled(volume.voxels)[1]
    noise = random.normal(0, fraction * span, volume.voxels.shape)
    return dataclasses.replace(volume, voxels=volume.voxels + noise.astype(np.float32))


def cropped(volume, axis, fraction, from_start):
    """Keeps `fraction` of an axis, at its start or its end."""
    size = volume.voxels.shape[axis]
    kept = max(8, int(round(fraction * size)))
    start = 0 if from_start else size - kept
    part = [slice(None)] * 3
    part[axis] = slice(start, start + kept)
    corner = np.zeros(3)
    corner[axis] = start
    affine = volume.affine.copy()
    affine[:3, 3] = pairs.map_points(volume.affine, corner)
    return Volume(np.ascontiguousarray(volume.voxels[tuple(part)]), affine)


def resected(volume, random, mask, radius_mm):
    """A ball within the mask takes the value of other tissue, with some texture. Returns (volume, ball as a mask)."""
    spacing = np.linalg.norm(volume.affine[:3, :3], axis=0)
    depth = ndimage.distance_transform_edt(mask, sampling=spacing)
    inner = np.argwhere(depth >= min(radius_mm, 0.6 * depth.max()))
    centre = inner[random.integers(len(inner))]
    indices = np.indices(volume.voxels.shape)
    distance = np.sqrt((((indices.T - centre) * spacing) ** 2).sum(axis=-1)).T
    ball = distance <= radius_mm
    low, span, unit = _scaled(volume.voxels)
    near = unit[ball].mean()
    value = low + span * (near - 0.4 if near > 0.5 else near + 0.4)
    voxels = volume.voxels.copy()
    voxels[ball] = value + 0.03 * span * ndimage.gaussian_filter(random.normal(size=voxels.shape), 1)[ball]
    return dataclasses.replace(volume, voxels=voxels), ball


def moved(volume, matrix):
    """The same voxels under a header moved by a rigid matrix."""
    return dataclasses.replace(volume, affine=matrix @ volume.affine)


def resampled(volume, longest_axis):
    """At spacings of at least a `longest_axis`th of the longest side, smoothed as much as the voxels grow."""
    spacing = np.linalg.norm(volume.affine[:3, :3], axis=0)
    size = np.array(volume.voxels.shape)
    step = np.maximum(1, (spacing * size).max() / longest_axis / spacing)
    smooth = ndimage.gaussian_filter(volume.voxels, 0.4 * np.sqrt(step**2 - 1), mode='nearest')
    kept = np.maximum(1, np.floor((size - 1) / step).astype(int) + 1)
    indices = np.indices(kept).reshape(3, -1) * step[:, np.newaxis]
    values = ndimage.map_coordinates(smooth, indices, order=1, mode='nearest')
    return Volume(values.reshape(kept), volume.affine @ np.diag([*step, 1]))
