#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The picture of client/slicer/README.md: the sample pair, registered and shown by the module's logic on VTK.

    make_picture.py HOST:PORT OUT.png

It shows what the nodes hold, resampled by VTK's grid transform; it is not a screenshot of 3D Slicer.
"""
import pathlib
import sys

import conftest  # noqa: F401: the module's folders on the path
import matplotlib
import mrml
import numpy as np
from scipy import ndimage

import intrawarp
from IntrawarpLib import registration, volumes
from IntrawarpLib.grid_transform import TransformChain

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def node_of(name, image):
    node = mrml.ScalarVolumeNode(name)
    volumes.show_image(image, node)
    return node


def seen(image, points):
    """The voxels of an image at points (rows, columns, 3) in LPS mm."""
    index = image.geometry.physical_to_index(points.reshape(-1, 3)).reshape(points.shape)
    return ndimage.map_coordinates(image.values.astype(float), np.moveaxis(index, -1, 0)[::-1], order=1, mode="nearest")


def main():
    address, out = sys.argv[1], pathlib.Path(sys.argv[2])
    pair = intrawarp.phantom(bend_mm=8.0)
    fixed, moving = node_of("IntrawarpFixed", pair.fixed), node_of("IntrawarpMoving", pair.moving)
    error = mrml.ScalarVolumeNode("error")
    chain = TransformChain(mrml.LinearTransformNode("affine"), mrml.GridTransformNode("grid"), mrml.OrientedGridTransform())
    with intrawarp.connect(address) as server:
        status = registration.register(server, intrawarp, fixed, moving, chain, method="affine,ffd",
                                       error_map_node=error).status
    nx, ny, nz = pair.fixed.geometry.size_xyz
    j, i = np.meshgrid(np.arange(ny), np.arange(nx), indexing="ij")
    points = pair.fixed.geometry.index_to_physical(np.stack([i, j, np.full_like(i, nz // 2)], axis=-1))
    flip = np.array([-1.0, -1.0, 1.0])
    mapped = np.array([chain.linear_node.from_world(point) for point in (points * flip).reshape(-1, 3)]) * flip
    panels = {"IntrawarpFixed": seen(pair.fixed, points), "IntrawarpMoving": seen(pair.moving, points),
              "IntrawarpMoving under its transforms": seen(pair.moving, mapped.reshape(points.shape))}
    figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.8), constrained_layout=True)
    for each, (title, plane) in zip(axes, panels.items()):
        each.imshow(plane, cmap="gray", vmin=-1000, vmax=900)
        each.set_title(title, fontsize=10)
    axes[3].imshow(seen(volumes.image_of(error, intrawarp.Image), points), cmap="cividis")
    shown = axes[3].images[0]
    axes[3].set_title("IntrawarpMoving expected error mm", fontsize=10)
    figure.colorbar(shown, ax=axes[3], shrink=0.8)
    for each in axes:
        each.set_axis_off()
    figure.suptitle("intrawarp: " + status.text(), fontsize=11)
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    main()
