# SPDX-License-Identifier: Apache-2.0
"""Points that the bridge maps, against ITK's reading of the field that it sent.

The field is written as a MetaImage of LPS vectors; ITK maps the points by a DisplacementFieldTransform of it. Nothing
of this tree lies between that file and ITK's answer. INTRAWARP_ITK_PEER names the program of tests/io/itk_peer;
tests/io/round_trips builds it and runs this test. The other variables are those of bridge_test.py.
"""
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bridge_test as base  # noqa: E402
import peer as igtl  # noqa: E402

POINTS = 1000
SKIPPED = 77


def turned(axis, degrees, shift=(0, 0, 0)):
    """A rigid matrix of three rows: a rotation about an axis through the origin, then a shift."""
    length = math.sqrt(sum(c * c for c in axis))
    x, y, z = (c / length for c in axis)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    d = 1 - c
    rows = [[c + x * x * d, x * y * d - z * s, x * z * d + y * s],
            [y * x * d + z * s, c + y * y * d, y * z * d - x * s],
            [z * x * d - y * s, z * y * d + x * s, c + z * z * d]]
    return [row + [t] for row, t in zip(rows, shift)]


class SentField:
    """The content of an IMAGE of three float32, in LPS."""

    def __init__(self, content):
        head = struct.unpack(">HBBBB3H12f6H", content[:72])
        assert head[1:4] == (3, 10, 2) and head[4] in (1, 2), head
        flip = (-1, -1, 1) if head[4] == 1 else (1, 1, 1)
        self.size, m = head[5:8], head[8:20]
        self.axes = [[flip[r] * m[3 * a + r] for r in range(3)] for a in range(3)]
        self.spacing = [math.sqrt(sum(c * c for c in axis)) for axis in self.axes]
        center = [flip[r] * m[9 + r] for r in range(3)]
        self.origin = [center[r] - sum((self.size[a] - 1) / 2 * self.axes[a][r] for a in range(3)) for r in range(3)]
        values = struct.unpack(f"<{(len(content) - 72) // 4}f", content[72:])
        self.values = [flip[i % 3] * v for i, v in enumerate(values)]

    def point(self, index):
        return [self.origin[r] + sum(index[a] * self.axes[a][r] for a in range(3)) for r in range(3)]

    def write(self, path):
        numbers = lambda values: " ".join(repr(float(v)) for v in values)
        axes = [c / self.spacing[a] for a in range(3) for c in self.axes[a]]
        with open(path, "wb") as file:
            file.write(("ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n"
                        f"CompressedData = False\nTransformMatrix = {numbers(axes)}\nOffset = {numbers(self.origin)}\n"
                        f"ElementSpacing = {numbers(self.spacing)}\nDimSize = {' '.join(map(str, self.size))}\n"
                        "ElementNumberOfChannels = 3\nElementType = MET_FLOAT\nElementDataFile = LOCAL\n").encode())
            file.write(struct.pack(f"<{len(self.values)}f", *self.values))


class ItkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = base.Server()
        cls.server.put_volume(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        cls.folder.cleanup()

    def mapped_by_itk(self, field, points):
        image, before, after = (os.path.join(self.folder.name, name) for name in ("field.mha", "in.txt", "out.txt"))
        field.write(image)
        with open(before, "w", encoding="ascii") as file:
            file.write("".join(f"{p[0]!r} {p[1]!r} {p[2]!r}\n" for p in points))
        subprocess.run((os.environ["INTRAWARP_ITK_PEER"], "map", image, before, after), check=True)
        with open(after, encoding="ascii") as file:
            return [tuple(float(word) for word in line.split()) for line in file]

    def differences(self, coordinates, pose=None, role="moving"):
        """Distances in mm between both mappings of points within the nodes of the field, sorted."""
        bridge = base.Bridge(self.server.address, "--volume=volumes/pre", "--method=affine,ffd", "--review_fields=use",
                             "--max_field_age_ms=600000", "--field_points=8000", f"--coordinates={coordinates}",
                             f"--volume_role={role}", *(["--pose_device=Pose"] if pose else []))
        self.addCleanup(bridge.end)
        peer = igtl.Peer(bridge.port)
        self.addCleanup(peer.close)
        if pose:
            peer.send("TRANSFORM", "Pose", igtl.transform(pose))
        peer.send("IMAGE", "Scanner", base.frame(base.voxels()))
        field = SentField(peer.expect("IMAGE", "IntrawarpField").content)
        source = random.Random(11)
        # float32, as points are on the wire.
        wire = lambda p: struct.unpack("<3f", struct.pack("<3f", *p))
        points = [wire(field.point([source.uniform(1, n - 2) for n in field.size])) for _ in range(POINTS)]
        flip = (-1, -1, 1) if coordinates == "ras" else (1, 1, 1)
        turn = lambda p: tuple(f * c for f, c in zip(flip, p))
        peer.send("POINT", "Targets", igtl.points([turn(p) for p in points]))
        ours = [turn(p) for p in igtl.read_points(peer.expect("POINT", "TargetsMapped").content)]
        self.assertEqual(len(ours), POINTS)
        moved = sorted(math.dist(a, b) for a, b in zip(ours, points))
        self.assertGreater(moved[0], 1)
        if role == "moving":
            pairs = zip(ours, self.mapped_by_itk(field, points))
        else:
            # The bridge went against the field: ITK goes back.
            pairs = zip(points, self.mapped_by_itk(field, ours))
        return sorted(math.dist(a, b) for a, b in pairs)

    def check(self, name, limit, **case):
        distances = self.differences(**case)
        print(f"\n| {name} | {POINTS} | {distances[POINTS // 2]:.1e} | {distances[-1]:.1e} |", flush=True)
        self.assertLess(distances[-1], limit)

    def test_points_are_where_itk_has_them(self):
        self.check("forward, LPS", 1e-4, coordinates="lps")

    def test_points_in_ras_on_an_oblique_grid_are_where_itk_has_them(self):
        self.check("forward, RAS, oblique grid", 1e-4, coordinates="ras", pose=turned((1, 2, 3), 12, (3, -2, 5)))

    def test_points_that_went_by_the_inverse_come_back_by_itk(self):
        # The inverse is exact to a thousandth of a millimetre.
        self.check("inverse, and back by ITK", 2e-3, coordinates="lps", role="fixed")


if __name__ == "__main__":
    if "INTRAWARP_ITK_PEER" not in os.environ:
        print("INTRAWARP_ITK_PEER is not set")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
