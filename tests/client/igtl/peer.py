# SPDX-License-Identifier: Apache-2.0
"""An OpenIGTLink peer of protocol 3, written from the protocol's documents with Python's own library only."""
import socket
import struct
import time

POLYNOMIAL = 0x42F0E1EBA9EA3693
MASK = (1 << 64) - 1


def _table():
    table = []
    for byte in range(256):
        crc = byte << 56
        for _ in range(8):
            crc = ((crc << 1) ^ (POLYNOMIAL if crc >> 63 else 0)) & MASK
        table.append(crc)
    return table


TABLE = _table()


def crc64(data):
    crc = 0
    for byte in data:
        crc = ((crc << 8) & MASK) ^ TABLE[(crc >> 56) ^ byte]
    return crc


class Message:
    def __init__(self, kind, device, content, version=2, metadata=(), timestamp=0):
        self.kind, self.device, self.content = kind, device, content
        self.version, self.metadata, self.timestamp = version, dict(metadata), timestamp

    def pack(self, crc=None):
        body = self.content
        if self.version == 2:
            index = values = b""
            if self.metadata:
                pairs = [(k.encode(), v.encode()) for k, v in self.metadata.items()]
                index = struct.pack(">H", len(pairs)) + b"".join(struct.pack(">HHI", len(k), 3, len(v)) for k, v in pairs)
                values = b"".join(k + v for k, v in pairs)
            body = struct.pack(">HHII", 12, len(index), len(values), 1) + body + index + values
        crc = crc64(body) if crc is None else crc
        return struct.pack(">H12s20sQQQ", self.version, self.kind.encode(), self.device.encode(), self.timestamp,
                           len(body), crc) + body


def image(size, spacing, center, voxels, scalar=10, endian=2, coordinate=2, components=1, begin=(0, 0, 0), part=None):
    """The content of an IMAGE whose axes are the axes of its coordinate system."""
    matrix = [spacing[0], 0, 0, 0, spacing[1], 0, 0, 0, spacing[2], *center]
    head = struct.pack(">HBBBB3H12f6H", 1, components, scalar, endian, coordinate, *size, *matrix, *begin,
                       *(part or size))
    return head + voxels


def transform(matrix):
    """Of the first three rows of a matrix."""
    return struct.pack(">12f", *(matrix[row][column] for column in range(4) for row in range(3)))


def read_transform(content):
    n = struct.unpack(">12f", content)
    return [[n[3 * column + row] for column in range(4)] for row in range(3)]


def points(positions):
    return b"".join(struct.pack(">64s32sI4f20s", b"p%d" % i, b"", 0, *p, 1, b"") for i, p in enumerate(positions))


def read_points(content):
    return [struct.unpack(">3f", content[at + 100:at + 112]) for at in range(0, len(content), 136)]


class Peer:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(60)

    def send(self, kind, device, content, **kwargs):
        self.socket.sendall(Message(kind, device, content, **kwargs).pack())

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(min(1 << 20, size - len(data)))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def receive(self, check=True):
        head = self._exactly(58)
        version, kind, device, timestamp, size, crc = struct.unpack(">H12s20sQQQ", head)
        body = self._exactly(size)
        if check and crc64(body) != crc:
            raise AssertionError("a wrong checksum")
        metadata = {}
        if version == 2:
            extended, index_bytes, value_bytes, _ = struct.unpack(">HHII", body[:12])
            tail = body[len(body) - index_bytes - value_bytes:]
            body = body[extended:len(body) - index_bytes - value_bytes]
            at = index_bytes
            for i in range(struct.unpack(">H", tail[:2])[0] if index_bytes else 0):
                key, _, value = struct.unpack(">HHI", tail[2 + 8 * i:10 + 8 * i])
                metadata[tail[at:at + key].decode()] = tail[at + key:at + key + value].decode()
                at += key + value
        text = lambda field: field.split(b"\0")[0].decode()
        return Message(text(kind), text(device), body, version, metadata, timestamp)

    def expect(self, kind, device, seconds=120, check=True, wanted=lambda message: True):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self.receive(check)
            if message.kind == kind and message.device == device and wanted(message):
                return message
        raise AssertionError(f"no {kind} of {device}")

    def close(self):
        self.socket.close()
