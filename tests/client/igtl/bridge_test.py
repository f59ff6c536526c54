# SPDX-License-Identifier: Apache-2.0
"""intrawarp-igtl as a process, between a peer of protocol 3 and a real server.

INTRAWARPD, INTRAWARP_CLI and INTRAWARP_IGTL name the programs.
"""
import csv
import math
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer as igtl  # noqa: E402

SIZE = (40, 36, 32)
SPACING = (2.0, 2.0, 2.0)
ORIGIN = (-40.0, -36.0, -32.0)
SHIFT = (4.0, -3.0, 2.0)


def voxels(shift=(0, 0, 0)):
    """Blobs of several sizes, moved by `shift` in LPS mm."""
    source = random.Random(7)
    blobs = [([source.uniform(-22, 22) for _ in range(3)], source.uniform(4, 9), source.uniform(50, 200)) for _ in range(14)]
    values = [0.0] * (SIZE[0] * SIZE[1] * SIZE[2])
    for center, sigma, height in blobs:
        factors = [[math.exp(-((ORIGIN[a] + SPACING[a] * i - center[a] - shift[a]) / sigma) ** 2 / 2)
                    for i in range(SIZE[a])] for a in range(3)]
        at = 0
        for z in factors[2]:
            for y in factors[1]:
                zy = height * z * y
                for x in factors[0]:
                    values[at] += zy * x
                    at += 1
    return values


def write_nifti(path, values):
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *SIZE, 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, 16, 32)
    struct.pack_into("<8f", header, 76, 1, *SPACING, 1, 1, 1, 1)
    struct.pack_into("<f", header, 108, 352)
    struct.pack_into("<B", header, 123, 2)
    struct.pack_into("<hh", header, 252, 0, 1)
    # RAS from voxels: x and y run against R and A.
    struct.pack_into("<12f", header, 280, -SPACING[0], 0, 0, -ORIGIN[0], 0, -SPACING[1], 0, -ORIGIN[1], 0, 0,
                     SPACING[2], ORIGIN[2])
    header[344:348] = b"n+1\0"
    with open(path, "wb") as file:
        file.write(header + struct.pack(f"<{len(values)}f", *values))


def frame(values, endian=2, scalar=10, coordinate=2):
    center = [ORIGIN[a] + SPACING[a] * (SIZE[a] - 1) / 2 for a in range(3)]
    order = "<" if endian == 2 else ">"
    if scalar == 10:
        data = struct.pack(f"{order}{len(values)}f", *values)
    else:
        data = struct.pack(f"{order}{len(values)}h", *(int(v) for v in values))
    if coordinate == 2:
        return igtl.image(SIZE, SPACING, center, data, scalar, endian)
    content = igtl.image(SIZE, (-SPACING[0], -SPACING[1], SPACING[2]), (-center[0], -center[1], center[2]), data, scalar,
                         endian, coordinate)
    return content


class Field:
    """A field as a consumer reads it: trilinear, in float64."""

    def __init__(self, message):
        head = struct.unpack(">HBBBB3H12f6H", message.content[:72])
        assert head[1:5] == (3, 10, 2, 1), head
        self.size, m = head[5:8], head[8:20]
        self.axes = [m[0:3], m[3:6], m[6:9]]
        self.spacing = [math.sqrt(sum(c * c for c in axis)) for axis in self.axes]
        self.origin = [m[9 + r] - sum((self.size[a] - 1) / 2 * self.axes[a][r] for a in range(3)) for r in range(3)]
        self.values = struct.unpack(f"<{(len(message.content) - 72) // 4}f", message.content[72:])

    def __call__(self, p):
        index = [sum((p[r] - self.origin[r]) * self.axes[a][r] for r in range(3)) / self.spacing[a] ** 2 for a in range(3)]
        low = [min(max(0, math.floor(i)), n - 2) for i, n in zip(index, self.size)]
        part = [i - l for i, l in zip(index, low)]
        out = list(p)
        for corner in range(8):
            bits = [corner >> a & 1 for a in range(3)]
            weight = math.prod(part[a] if bits[a] else 1 - part[a] for a in range(3))
            at = 3 * (((low[2] + bits[2]) * self.size[1] + low[1] + bits[1]) * self.size[0] + low[0] + bits[0])
            for r in range(3):
                out[r] += weight * self.values[at + r]
        return out


class Bridge:
    def __init__(self, server, *flags):
        self.process = subprocess.Popen((os.environ["INTRAWARP_IGTL"], f"--server={server}", "--listen=127.0.0.1:0",
                                         "--metrics=127.0.0.1:0", *flags), stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline().split()
        self.port = int(ready[1].split("=")[1])
        self.metrics_port = int(ready[2].split("=")[1])

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[:1] != "#"}

    def end(self):
        if self.process.stdout.closed:
            return self.process.returncode
        self.process.terminate()
        status = self.process.wait(30)
        self.process.stdout.close()
        return status


class Server:
    def __init__(self, *flags, listen="127.0.0.1:0"):
        self.process = subprocess.Popen((os.environ["INTRAWARPD"], f"--listen={listen}", "--http=127.0.0.1:0",
                                         "--device=cpu", *flags),
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().split()[1].split("=")[1]

    def end(self, how=signal.SIGTERM):
        if self.process.stdout.closed:
            return
        self.process.send_signal(how)
        self.process.wait(60)
        self.process.stdout.close()

    def cli(self, *arguments):
        return subprocess.run((os.environ["INTRAWARP_CLI"], f"--server={self.address}", *arguments), check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    def put_volume(self, folder):
        path = os.path.join(folder, "moving.nii")
        write_nifti(path, voxels(SHIFT))
        self.cli("volume", "put", path, "--id=pre")


class BridgeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(f"--shared_memory={cls.folder.name}/shm")
        cls.address = cls.server.address
        cls.server.put_volume(cls.folder.name)
        cls.still = voxels()

    @classmethod
    def tearDownClass(cls):
        cls.server.end()
        cls.folder.cleanup()

    def open(self, *flags):
        bridge = Bridge(self.address, *flags)
        self.addCleanup(bridge.end)
        peer = igtl.Peer(bridge.port)
        self.addCleanup(peer.close)
        return bridge, peer

    def test_a_frame_gives_field_affine_warped_volume_and_mapped_tools(self):
        bridge, peer = self.open("--volume=volumes/pre", "--method=affine,log-demons", "--review_fields=use",
                                 "--max_field_age_ms=600000", "--send_warped=true", "--field_points=8000")
        status = peer.expect("STATUS", "IntrawarpStatus")
        self.assertEqual(struct.unpack(">H", status.content[:2])[0], 13)
        before = set(self.server.cli("transform", "list").split())
        peer.send("IMAGE", "Scanner", frame(self.still))
        affine = igtl.read_transform(peer.expect("TRANSFORM", "IntrawarpAffine").content)
        field_message = peer.expect("IMAGE", "IntrawarpField")
        self.assertEqual(field_message.metadata["direction"], "fixed to moving")
        warped = peer.expect("IMAGE", "IntrawarpWarped")
        self.assertEqual(struct.unpack(">3H", warped.content[6:12]), SIZE)
        values = struct.unpack(f"<{len(self.still)}f", warped.content[72:])
        rms = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, self.still)) / len(values))
        norm = math.sqrt(sum(a * a for a in self.still) / len(values))
        self.assertLess(rms, 0.1 * norm)

        # RAS: x and y are turned round.
        wanted = (-SHIFT[0], -SHIFT[1], SHIFT[2])
        for row in range(3):
            self.assertAlmostEqual(affine[row][3], wanted[row], delta=0.5)
        pose = [[1, 0, 0, 5], [0, 1, 0, 3], [0, 0, 1, -4]]
        peer.send("TRANSFORM", "Stylus", igtl.transform(pose))
        mapped = peer.expect("TRANSFORM", "StylusMapped")
        self.assertIn(mapped.metadata["verdict"], ("ok", "review"))
        self.assertIn("expected_mm", mapped.metadata)
        tip = [row[3] for row in igtl.read_transform(mapped.content)]
        for row in range(3):
            self.assertAlmostEqual(tip[row], pose[row][3] + wanted[row], delta=0.5)
        self.check_points(peer, field_message, before)
        status = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: "tip_expected_mm.Stylus" in m.metadata)
        self.assertEqual(status.metadata["session"], "open")
        metrics = bridge.metrics()
        self.assertEqual(metrics["intrawarp_igtl_frames_sent_total"], 1)
        self.assertEqual(metrics['intrawarp_igtl_messages_lost_total{where="content"}'], 0)

    def check_points(self, peer, field_message, before):
        """1,000 points against the field that was sent, and against the server's own mapping."""
        source = random.Random(3)
        ras = [tuple(source.uniform(-24, 24) for _ in range(3)) for _ in range(1000)]
        peer.send("POINT", "Targets", igtl.points(ras))
        mapped = igtl.read_points(peer.expect("POINT", "TargetsMapped").content)
        self.assertEqual(len(mapped), 1000)
        field = Field(field_message)
        worst = max(math.dist(m, field(p)) for m, p in zip(mapped, ras))
        self.assertLess(worst, 1e-3)
        transforms = [word for word in set(self.server.cli("transform", "list").split()) - before
                      if word.startswith("transforms/")]
        self.assertEqual(len(transforms), 1)
        path_in, path_out = (os.path.join(self.folder.name, name) for name in ("in.csv", "out.csv"))
        with open(path_in, "w", encoding="ascii") as file:
            file.write("x,y,z\n" + "".join(f"{-x},{-y},{z}\n" for x, y, z in ras))
        self.server.cli("points", f"--transform={transforms[0]}", f"--in={path_in}", f"--out={path_out}")
        with open(path_out, encoding="ascii") as file:
            exact = [(-float(r["x"]), -float(r["y"]), float(r["z"])) for r in csv.DictReader(file)]
        errors = sorted(math.dist(a, b) for a, b in zip(mapped, exact))
        print(f"1,000 points: {worst:.2e} mm from the field sent; from the server's mapping "
              f"{errors[500]:.4f} median, {errors[-1]:.4f} mm worst", file=sys.stderr)
        self.assertLess(errors[-1], 0.25)

    def test_types_byte_orders_and_coordinate_systems_are_the_same_image(self):
        bridge, peer = self.open("--volume=volumes/pre", "--method=affine", "--review_fields=use")
        # In RAS the same voxels lie mirrored, unless the axes are turned, too.
        for endian, scalar, coordinate in ((2, 10, 2), (1, 10, 2), (1, 4, 1), (2, 4, 1)):
            peer.send("IMAGE", "Scanner", frame(self.still, endian, scalar, coordinate))
            affine = igtl.read_transform(peer.expect("TRANSFORM", "IntrawarpAffine").content)
            for row, wanted in enumerate((-SHIFT[0], -SHIFT[1], SHIFT[2])):
                self.assertAlmostEqual(affine[row][3], wanted, delta=0.5, msg=f"{endian} {scalar} {coordinate}")
        self.assertEqual(bridge.metrics()["intrawarp_igtl_sessions_total"], 2)

    def expect_the_shift(self, peer):
        affine = igtl.read_transform(peer.expect("TRANSFORM", "IntrawarpAffine").content)
        for row, wanted in enumerate((-SHIFT[0], -SHIFT[1], SHIFT[2])):
            self.assertAlmostEqual(affine[row][3], wanted, delta=0.5)

    def test_voxels_come_straight_into_shared_memory(self):
        bridge, peer = self.open("--volume=volumes/pre", "--method=affine", "--review_fields=use",
                                 "--shared_memory=true")
        other = igtl.Peer(bridge.port)
        self.addCleanup(other.close)
        content = frame(self.still)
        in_place = lambda: bridge.metrics()["intrawarp_igtl_frames_in_place_total"]
        for version in (1, 2) * 10:
            peer.send("IMAGE", "Scanner", content, version=version, metadata={"a": "b"} if version == 2 else {})
            self.expect_the_shift(peer)
            if in_place() >= 3:
                break
        self.assertGreaterEqual(in_place(), 3)
        # A peer that stops within an image holds nobody up, and its image is whole when it goes on.
        message = igtl.Message("IMAGE", "Scanner", content).pack()
        other.socket.sendall(message[:100000])
        peer.send("COMMAND", "c", struct.pack(">I128sHI", 1, b"status", 3, 0))
        peer.expect("RTS_COMMAND", "c")
        peer.send("IMAGE", "Scanner", content)
        self.expect_the_shift(peer)
        other.socket.sendall(message[100000:])
        self.expect_the_shift(peer)
        # Neither a wrong checksum nor an image that breaks off spoils the memory for the next one.
        peer.socket.sendall(igtl.Message("IMAGE", "Scanner", content).pack(crc=1))
        self.assertIn(b"crc", peer.expect("STATUS", "IntrawarpError").content)
        other.socket.sendall(message[:150000])
        other.close()
        before = in_place()
        for _ in range(20):
            peer.send("IMAGE", "Scanner", content)
            self.expect_the_shift(peer)
            if in_place() > before:
                break
        self.assertGreater(in_place(), before)

    def test_a_fixed_volume_maps_by_the_inverse(self):
        bridge, peer = self.open("--volume=volumes/pre", "--volume_role=fixed", "--method=affine",
                                 "--review_fields=use", "--coordinates=lps", "--header_version=1",
                                 "--max_field_age_ms=600000")
        peer.send("IMAGE", "Scanner", frame(self.still), version=1)
        peer.expect("TRANSFORM", "IntrawarpAffine")
        peer.send("POSITION", "Probe", struct.pack(">3f", 1, 2, 3), version=1)
        mapped = peer.expect("POSITION", "ProbeMapped")
        self.assertEqual(mapped.version, 1)
        # The frame moves to the volume by -SHIFT; a point of the frame lies at +SHIFT in the volume.
        for got, at, shift in zip(struct.unpack(">3f", mapped.content[:12]), (1, 2, 3), SHIFT):
            self.assertAlmostEqual(got, at + shift, delta=0.5)

    def test_control_by_command_and_string(self):
        bridge, peer = self.open("--start=false")
        command = lambda name, text: struct.pack(">I128sHI", 7, name, 3, len(text)) + text
        def answer(name, text):
            peer.send("COMMAND", "Slicer", command(name, text))
            content = peer.expect("RTS_COMMAND", "Slicer").content
            self.assertEqual(struct.unpack(">I", content[:4])[0], 7)
            return content[138:].decode()
        self.assertIn('success="false"', answer(b"dance", b""))
        self.assertIn('success="false"', answer(b"method", b"<Command><P Value=\"magic\"/></Command>"))
        self.assertIn('success="false"', answer(b"volume", b"pre"))
        self.assertIn('success="true"', answer(b"Volume", b"volumes/pre"))
        self.assertIn('success="true"', answer(b"method", b"affine"))
        peer.send("IMAGE", "Scanner", frame(self.still))
        self.assertIn("session=stopped", answer(b"status", b""))
        peer.send("STRING", "IntrawarpCtl", struct.pack(">HH", 3, 5) + b"start")
        self.assertIn(b"started", peer.expect("STRING", "IntrawarpCtl").content)
        peer.send("IMAGE", "Scanner", frame(self.still))
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: "verdict" in m.metadata)
        self.assertEqual(bridge.metrics()['intrawarp_igtl_messages_lost_total{where="frame"}'], 1)

    def test_hostile_messages_are_refused_and_counted(self):
        bridge, peer = self.open("--volume=volumes/pre")
        for size in (0, 71):
            peer.send("IMAGE", "Scanner", bytes(size), version=1)
            self.assertIn(b"image", peer.expect("STATUS", "IntrawarpError").content)
        peer.socket.sendall(igtl.Message("STRING", "x", b"text", 1).pack(crc=1))
        self.assertIn(b"crc", peer.expect("STATUS", "IntrawarpError").content)
        for byte in igtl.Message("COMMAND", "Slow", struct.pack(">I128sHI", 1, b"status", 3, 0)).pack():
            peer.socket.sendall(bytes((byte,)))
        peer.expect("RTS_COMMAND", "Slow")
        other = igtl.Peer(bridge.port)
        self.addCleanup(other.close)
        other.socket.sendall(struct.pack(">H12s20sQQQ", 1, b"IMAGE", b"x", 0, 1 << 63, 0))
        with self.assertRaises((EOFError, ConnectionError)):
            while True:
                other.receive()
        metrics = bridge.metrics()
        self.assertEqual(metrics['intrawarp_igtl_messages_lost_total{where="checksum"}'], 1)
        self.assertGreaterEqual(metrics['intrawarp_igtl_messages_lost_total{where="content"}'], 3)
        self.assertEqual(bridge.end(), 0)

    def test_a_wrong_configuration_is_refused(self):
        def check(text):
            path = os.path.join(self.folder.name, "bridge.conf")
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            return subprocess.run((os.environ["INTRAWARP_IGTL"], f"--config={path}", "--check_config"),
                                  stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(check("listen = 127.0.0.1:18944\nvolume = volumes/x\n").returncode, 0)
        for text, named in (("volume = volumes/x\n", "--listen"), ("listen = 1:1\n", "--volume"),
                            ("listen = 1:1\nmethod = magic\nvolume = volumes/x\n", "--method"),
                            ("colour = red\n", "line 1"), ("listen = nonsense\nvolume = volumes/x\n", "--listen")):
            refused = check(text)
            self.assertEqual(refused.returncode, 2, text)
            self.assertIn(named, refused.stderr)

    def test_the_bridge_waits_for_a_server_and_for_devices(self):
        bridge, peer = self.open("--volume=volumes/absent", "--consumers=127.0.0.1:9", "--devices=127.0.0.1:9")
        peer.send("IMAGE", "Scanner", frame(self.still))
        status = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"] == "NOT_FOUND")
        self.assertEqual(struct.unpack(">H", status.content[:2])[0], 13)
        peer.send("COMMAND", "c", struct.pack(">I128sHI", 1, b"volume", 3, 11) + b"volumes/pre")
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: "verdict" in m.metadata)


class ServerLossTest(unittest.TestCase):
    """The server ends and comes back on its port; the bridge goes on by itself."""

    MAX_AGE_MS = 6000

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.mkdir(os.path.join(folder.name, "state"), 0o700)
        self.flags = (f"--state_dir={folder.name}/state", f"--shared_memory={folder.name}/shm")
        self.server = Server(*self.flags)
        self.addCleanup(lambda: self.server.end())
        self.server.put_volume(folder.name)
        self.image = frame(voxels())

    def restart(self):
        self.server = Server(*self.flags, listen=self.server.address)

    def map_a_pose(self, peer):
        """Whether a pose is mapped now: the answer to a command comes behind it."""
        peer.send("TRANSFORM", "Stylus", igtl.transform([[1, 0, 0, 5], [0, 1, 0, 3], [0, 0, 1, -4]]))
        peer.send("COMMAND", "c", struct.pack(">I128sHI", 1, b"status", 3, 0))
        mapped = None
        while True:
            message = peer.receive()
            if message.device == "StylusMapped":
                mapped = message
                self.assertLessEqual(int(message.metadata["age_ms"]), self.MAX_AGE_MS)
            if message.kind == "RTS_COMMAND":
                return mapped is not None

    def map_by_a_new_frame(self, peer):
        for _ in range(10):
            peer.send("IMAGE", "Scanner", self.image)
            peer.expect("TRANSFORM", "IntrawarpAffine")
            if self.map_a_pose(peer):
                return
        self.fail("no frame was young enough to map a pose")

    def lose_and_regain(self, bridge, peer, how, losses):
        self.map_by_a_new_frame(peer)
        self.server.end(how)
        lost = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"] == "UNAVAILABLE")
        self.assertEqual(lost.metadata["sessions_lost"], str(losses))
        self.assertGreaterEqual(int(lost.metadata["session_failures"]), 1)
        self.assertEqual(struct.unpack(">H", lost.content[:2])[0], 7)
        self.assertIn(lost.content[10:30].rstrip(b"\0"), (b"ServerLost", b"FieldTooOld"))
        old = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.content[10:21] == b"FieldTooOld")
        self.assertEqual(old.metadata["session"], "UNAVAILABLE")
        self.assertFalse(self.map_a_pose(peer))
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: int(m.metadata["session_failures"]) >= 3)
        self.restart()
        # No image comes meanwhile.
        opened = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"].startswith("open"))
        self.assertNotIn("session_failures", opened.metadata)
        self.assertEqual(opened.metadata["sessions_lost"], str(losses))
        self.map_by_a_new_frame(peer)
        metrics = bridge.metrics()
        self.assertEqual(metrics["intrawarp_igtl_sessions_total"], losses + 1)
        self.assertEqual(metrics["intrawarp_igtl_sessions_lost_total"], losses)
        self.assertGreaterEqual(metrics["intrawarp_igtl_session_failures_total"], 2 * losses)

    def test_a_session_begins_anew_when_the_server_is_back(self):
        for shared in ("false", "true"):
            with self.subTest(shared=shared):
                bridge = Bridge(self.server.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use",
                                f"--max_field_age_ms={self.MAX_AGE_MS}", f"--shared_memory={shared}")
                self.addCleanup(bridge.end)
                peer = igtl.Peer(bridge.port)
                self.addCleanup(peer.close)
                self.lose_and_regain(bridge, peer, signal.SIGKILL, 1)
                self.lose_and_regain(bridge, peer, signal.SIGTERM, 2)
                self.assertEqual(bridge.end(), 0)

    def test_a_server_that_hangs_is_lost(self):
        bridge = Bridge(self.server.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use")
        self.addCleanup(bridge.end)
        peer = igtl.Peer(bridge.port)
        self.addCleanup(peer.close)
        peer.send("IMAGE", "Scanner", self.image)
        peer.expect("TRANSFORM", "IntrawarpAffine")
        os.kill(self.server.process.pid, signal.SIGSTOP)
        peer.send("IMAGE", "Scanner", self.image)
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"] == "UNAVAILABLE")
        # The frame that the server had.
        self.assertEqual(bridge.metrics()['intrawarp_igtl_messages_lost_total{where="server"}'], 1)
        os.kill(self.server.process.pid, signal.SIGCONT)
        peer.send("IMAGE", "Scanner", self.image)
        peer.expect("TRANSFORM", "IntrawarpAffine")

    def test_a_command_ends_the_pause(self):
        bridge = Bridge(self.server.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use")
        self.addCleanup(bridge.end)
        peer = igtl.Peer(bridge.port)
        self.addCleanup(peer.close)
        peer.send("IMAGE", "Scanner", self.image)
        peer.expect("TRANSFORM", "IntrawarpAffine")
        self.server.end(signal.SIGKILL)
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"] == "UNAVAILABLE")
        peer.send("STRING", "IntrawarpCtl", struct.pack(">HH", 3, 4) + b"stop")
        stopped = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"] == "stopped")
        self.assertNotIn("session_failures", stopped.metadata)
        self.assertNotEqual(stopped.content[10:20], b"ServerLost")

    def test_a_command_forgets_no_loss(self):
        bridge = Bridge(self.server.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use",
                        "--max_field_age_ms=600000")
        self.addCleanup(bridge.end)
        peer = igtl.Peer(bridge.port)
        self.addCleanup(peer.close)
        peer.send("IMAGE", "Scanner", self.image)
        peer.expect("TRANSFORM", "IntrawarpAffine")
        self.server.end(signal.SIGKILL)
        peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.content[10:20] == b"ServerLost")
        for command in (b"start", b"method affine", b"volume volumes/pre"):
            with self.subTest(command=command):
                peer.send("STRING", "IntrawarpCtl", struct.pack(">HH", 3, len(command)) + command)
                peer.expect("STRING", "IntrawarpCtl")
                for _ in range(3):
                    status = peer.expect("STATUS", "IntrawarpStatus")
                    self.assertEqual(status.content[10:20], b"ServerLost")
                    self.assertEqual(status.metadata["session"], "UNAVAILABLE")
        self.restart()
        # No image comes meanwhile.
        opened = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: m.metadata["session"].startswith("open"))
        self.assertNotEqual(opened.content[10:20], b"ServerLost")


if __name__ == "__main__":
    unittest.main(verbosity=2)
