# SPDX-License-Identifier: Apache-2.0
"""What the bridge adds, and how long it holds: intrawarp-igtl between peers of this program and a real server.

    igtl_run.py latency [SECONDS]    poses at 1 kHz to their mapped messages, frames of 128^3 through the bridge
    igtl_run.py soak [SECONDS]       peers that stall, break off and flood beside a tracker at 100 Hz

INTRAWARPD, INTRAWARP_CLI and INTRAWARP_IGTL name the programs. Nothing is asserted about times.
"""
import os
import random
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bridge_test as base  # noqa: E402
import peer as igtl  # noqa: E402


FRAMES = 40


def percentiles(name, seconds):
    ordered = sorted(1e3 * s for s in seconds)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))]
    print(f"{name}: n={len(ordered)} p50={at(0.5):.3f} ms p99={at(0.99):.3f} ms max={ordered[-1]:.3f} ms", flush=True)


def histogram(metrics, name):
    return {key.split('"')[1]: int(value) for key, value in metrics.items() if key.startswith(name + "_bucket")}


def quantile(counts, q):
    """The upper bound of the bucket that has it."""
    return next(bound for bound, count in counts.items() if count >= q * counts["+Inf"])


def poses(peer, seconds, hertz):
    """Round trips: sent, mapped, received by the same peer."""
    content = igtl.transform([[1, 0, 0, 5], [0, 1, 0, 3], [0, 0, 1, -4]])
    message = igtl.Message("TRANSFORM", "Stylus", content).pack()
    trips, next_at, end = [], time.perf_counter(), time.monotonic() + seconds
    while time.monotonic() < end:
        next_at = max(next_at + 1 / hertz, time.perf_counter() - 1)
        while time.perf_counter() < next_at:
            time.sleep(0)
        sent = time.perf_counter()
        peer.socket.sendall(message)
        peer.expect("TRANSFORM", "StylusMapped", check=False)
        trips.append(time.perf_counter() - sent)
    return trips


def latency(seconds):
    case = base.BridgeTest
    case.setUpClass()
    bridge = base.Bridge(case.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use",
                         "--max_field_age_ms=86400000", "--status_interval_ms=60000")
    peer = igtl.Peer(bridge.port)
    peer.send("IMAGE", "Scanner", base.frame(case.still))
    peer.expect("TRANSFORM", "IntrawarpAffine")
    percentiles("a pose, round trip", poses(peer, seconds, 1000))
    print("a pose, within the bridge (s):", histogram(bridge.metrics(), "intrawarp_igtl_pose_seconds"), flush=True)
    bridge.end()
    side = 128
    source = random.Random(1)
    row = struct.pack(f"<{side}f", *(source.uniform(0, 200) for _ in range(side)))
    big = igtl.Message("IMAGE", "Scanner", igtl.image((side,) * 3, (1, 1, 1), (0, 0, 0), row * side * side), 1).pack()
    for shared in ("false", "true"):
        bridge = base.Bridge(case.address, "--volume=volumes/pre", "--method=affine", f"--shared_memory={shared}")
        peer = igtl.Peer(bridge.port)
        for _ in range(3 * FRAMES // 2):
            peer.socket.sendall(big)
            time.sleep(0.5)
            if bridge.metrics()["intrawarp_igtl_frames_sent_total"] > FRAMES:
                break
        state = peer.expect("STATUS", "IntrawarpStatus", wanted=lambda m: "open" in m.metadata["session"])
        metrics = bridge.metrics()
        counts = histogram(metrics, "intrawarp_igtl_frame_seconds")
        print(f"a frame of 128^3 float32, last byte to sent, {state.metadata['session']}, shared memory {shared}: "
              f"n={counts['+Inf']} p50<={quantile(counts, 0.5)} s p90<={quantile(counts, 0.9)} s "
              f"p99<={quantile(counts, 0.99)} s, "
              f"{metrics.get('intrawarp_igtl_frames_in_place_total', 0):.0f} straight into shared memory", flush=True)
        print(counts, flush=True)
        bridge.end()
    case.tearDownClass()


def memory_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Soak:
    def __init__(self, bridge, still):
        self.bridge, self.still, self.end = bridge, still, threading.Event()

    def stall(self):
        while not self.end.is_set():
            deaf = igtl.Peer(self.bridge.port)
            self.end.wait(8)
            deaf.close()

    def break_off(self):
        message = igtl.Message("IMAGE", "Broken", base.frame(self.still)).pack(0)
        source = random.Random(2)
        while not self.end.is_set():
            peer = igtl.Peer(self.bridge.port)
            peer.socket.sendall(message[:source.randrange(1, len(message))])
            peer.close()
            self.end.wait(0.05)

    def flood(self):
        # 1440x1080 at 30 a second.
        content = igtl.image((1440, 1080, 1), (1, 1, 1), (0, 0, 0), bytes(1440 * 1080), scalar=3)
        message = igtl.Message("IMAGE", "Video", content, 1).pack()
        peer = igtl.Peer(self.bridge.port)
        reader = threading.Thread(target=self.drain, args=(peer,))
        reader.start()
        while not self.end.is_set():
            peer.socket.sendall(message)
            self.end.wait(1 / 30)
        peer.socket.shutdown(2)
        reader.join()

    @staticmethod
    def drain(peer):
        try:
            while peer.socket.recv(1 << 20):
                pass
        except OSError:
            pass


def soak(seconds):
    case = base.BridgeTest
    case.setUpClass()
    bridge = base.Bridge(case.address, "--volume=volumes/pre", "--method=affine", "--review_fields=use",
                         "--image_device=Scanner", "--max_field_age_ms=86400000", "--stall_timeout_ms=3000")
    scanner, tracker = igtl.Peer(bridge.port), igtl.Peer(bridge.port)
    scanner.send("IMAGE", "Scanner", base.frame(case.still))
    tracker.expect("TRANSFORM", "IntrawarpAffine")
    load = Soak(bridge, case.still)
    threads = [threading.Thread(target=t) for t in (load.stall, load.break_off, load.flood)]
    threads.append(threading.Thread(target=load.drain, args=(scanner,)))
    for thread in threads:
        thread.start()
    image = igtl.Message("IMAGE", "Scanner", base.frame(case.still)).pack()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        scanner.socket.sendall(image)
        percentiles("a pose beside the load, round trip", poses(tracker, min(30, seconds), 100))
        print(f"memory {memory_kib(bridge.process.pid)} KiB, descriptors {descriptors(bridge.process.pid)}", flush=True)
    load.end.set()
    scanner.socket.shutdown(2)
    for thread in threads:
        thread.join()
    for key, value in bridge.metrics().items():
        if "bucket" not in key:
            print(key, int(value))
    print("exit status", bridge.end())
    case.tearDownClass()


if __name__ == "__main__":
    {"latency": latency, "soak": soak}[sys.argv[1]](float(sys.argv[2]) if len(sys.argv) > 2 else 10)
