# SPDX-License-Identifier: Apache-2.0
"""What two independent peers send to intrawarp-igtl, and what they get: a line for each kind of message.

    transcript.py    prints two tables; fails when a kind of message does not come

One peer is Debian's OpenIGTLink library (igtl_library_peer, header version 1), the other peer.py (header version 2,
protocol 3). INTRAWARPD, INTRAWARP_CLI, INTRAWARP_IGTL and IGTL_LIBRARY_PEER name the programs.
"""
import os
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bridge_test as base  # noqa: E402
import peer as igtl  # noqa: E402

POSE = [[1, 0, 0, 5], [0, 1, 0, 3], [0, 0, 1, -4]]
# The bridge reads and writes these (docs/use/openigtlink.md).
READ = {"IMAGE", "TRANSFORM", "POSITION", "TDATA", "POINT", "POLYDATA", "STRING", "GET_STATUS"}
WRITTEN = {"IMAGE", "TRANSFORM", "POSITION", "TDATA", "POINT", "POLYDATA", "STRING", "STATUS"}
FLAGS = ("--volume=volumes/pre", "--method=affine,ffd", "--review_fields=use", "--max_field_age_ms=600000",
         "--send_warped=true", "--field_points=8000", "--coordinates=lps")


def numbers(values):
    return " ".join(f"{v:.2f}" for v in values)


def words(kind, content):
    """A content in words, taken apart by the protocol's document."""
    if kind == "IMAGE":
        head = struct.unpack(">HBBBB3H12f6H", content[:72])
        return (f"{head[5]}x{head[6]}x{head[7]}, scalar type {head[2]}, {head[1]} component(s), centre "
                f"{numbers(head[17:20])}, {'RAS' if head[4] == 1 else 'LPS'}")
    if kind == "TRANSFORM":
        return f"position {numbers(row[3] for row in igtl.read_transform(content))}"
    if kind in ("POSITION", "QTRANS"):
        return f"position {numbers(struct.unpack('>3f', content[:12]))}"
    if kind == "TDATA":
        name = content[:20].split(b"\0")[0].decode()
        return f"{len(content) // 70} tool(s); {name}, position {numbers(struct.unpack('>3f', content[58:70]))}"
    if kind == "POINT":
        found = igtl.read_points(content)
        return f"{len(found)} point(s); first at {numbers(found[0])}"
    if kind == "POLYDATA":
        counts = struct.unpack(">10I", content[:40])
        return f"{counts[0]} point(s), {counts[5]} polygon(s); first at {numbers(struct.unpack('>3f', content[40:52]))}"
    if kind == "STRING":
        return f'"{content[4:104].decode()}"'
    if kind in ("COMMAND", "RTS_COMMAND"):
        number, name = struct.unpack(">I128s", content[:132])
        return f"id {number}, {name.split(bytes(1))[0].decode()}, \"{content[138:238].decode()}\""
    if kind == "STATUS":
        name = content[10:30].split(b"\0")[0].decode()
        return f'code {struct.unpack(">H", content[:2])[0]}, "{name}", "{content[30:130].split(bytes(1))[0].decode()}"'
    if kind == "STT_TDATA":
        return f"every {struct.unpack('>I', content[:4])[0]} ms"
    return ""


class Told:
    """A peer of protocol 3 whose messages become rows."""

    def __init__(self, connection, rows):
        self.peer, self.rows = connection, rows

    def send(self, kind, device, content, **kwargs):
        self.peer.send(kind, device, content, **kwargs)
        self.rows.append(("sent", kind, device, words(kind, content)))

    def expect(self, kind, device):
        message = self.peer.expect(kind, device)
        keys = ", ".join(list(message.metadata)[:4])
        self.rows.append(("got", kind, device, words(kind, message.content) + (f"; metadata {keys}" if keys else "")))


def library_rows(server, voxels):
    bridge = base.Bridge(server.address, *FLAGS, "--header_version=1")
    try:
        out = subprocess.run((os.environ["IGTL_LIBRARY_PEER"], str(bridge.port), *map(str, base.SIZE),
                              str(base.SPACING[0]), voxels), check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        bridge.end()
    return [tuple(line.split(" | ")) for line in out.splitlines()]


def protocol_3_rows(server, still):
    rows = []
    listener = socket.create_server(("127.0.0.1", 0))
    bridge = base.Bridge(server.address, *FLAGS, f"--devices=127.0.0.1:{listener.getsockname()[1]}",
                         "--tracking_interval_ms=50")
    try:
        tracker = igtl.Peer.__new__(igtl.Peer)
        tracker.socket = listener.accept()[0]
        Told(tracker, rows).expect("STT_TDATA", "")
        peer = Told(igtl.Peer(bridge.port), rows)
        peer.send("IMAGE", "Scanner", base.frame(still), metadata={"MRMLNodeName": "Scanner"})
        for kind, device in (("TRANSFORM", "IntrawarpAffine"), ("IMAGE", "IntrawarpField"), ("IMAGE", "IntrawarpWarped")):
            peer.expect(kind, device)
        transform = igtl.transform(POSE)
        triangle = struct.pack(">10I", 3, 0, 0, 0, 0, 1, 16, 0, 0, 0) + struct.pack(
            ">9f4I", 5, 3, -4, 6, 3, -4, 7, 3, -4, 3, 0, 1, 2)
        for kind, device, content in (
                ("TRANSFORM", "Stylus", transform), ("POSITION", "Probe", struct.pack(">7f", 5, 3, -4, 0, 0, 0, 1)),
                ("QTRANS", "Pointer", struct.pack(">7f", 5, 3, -4, 0, 0, 0, 1)),
                ("TDATA", "Tracker", struct.pack(">20sBB", b"Needle", 2, 0) + transform),
                ("POINT", "Targets", igtl.points([(5, 3, -4)])), ("POLYDATA", "Organ", triangle)):
            peer.send(kind, device, content)
            peer.expect(kind, device + "Mapped")
        peer.send("STRING", "IntrawarpCtl", struct.pack(">HH", 3, 6) + b"status")
        peer.expect("STRING", "IntrawarpCtl")
        peer.send("COMMAND", "Slicer", struct.pack(">I128sHI", 7, b"status", 3, 0))
        peer.expect("RTS_COMMAND", "Slicer")
        peer.send("GET_STATUS", "Slicer", b"")
        peer.expect("STATUS", "IntrawarpStatus")
        peer.send("IMAGE", "Scanner", igtl.image((2, 2, 2), (1, 1, 1), (0, 0, 0), bytes(24), 3, components=3))
        peer.expect("STATUS", "IntrawarpError")
        peer.peer.close()
        tracker.close()
    finally:
        listener.close()
        bridge.end()
    return rows


def show(title, rows, read, written):
    print(f"### {title}\n\n| | type | device | content |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)
    kinds = {way: {kind for at, kind, _, _ in rows if at == way} for way in ("sent", "got")}
    missing = (read - kinds["sent"]) | (written - kinds["got"])
    if missing:
        sys.exit(f"not in the transcript: {sorted(missing)}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        server = base.Server()
        try:
            server.put_volume(folder)
            still = base.voxels()
            voxels = os.path.join(folder, "voxels")
            with open(voxels, "wb") as file:
                file.write(struct.pack(f"<{len(still)}f", *still))
            show("Debian's OpenIGTLink library 1.11, header version 1", library_rows(server, voxels), READ, WRITTEN)
            show("peer.py, header version 2", protocol_3_rows(server, still), READ | {"COMMAND", "QTRANS"},
                 WRITTEN | {"QTRANS", "RTS_COMMAND", "STT_TDATA"})
        finally:
            server.end()


if __name__ == "__main__":
    main()
