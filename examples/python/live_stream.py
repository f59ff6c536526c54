# SPDX-License-Identifier: Apache-2.0
"""A live stream: each frame is registered to the resident volume, and a tool's tip is carried through the newest field.

    live_stream.py FIXED FRAME...      a frame is a file here, and an image of a camera in the theatre
"""
import sys

import intrawarp

DEADLINE_S = 30.0  # 0.15 on a GPU: an answer that comes later is of no use
TIP_LPS = [[0.0, 0.0, 0.0]]


def tell(answer):
    """What became of one frame. A late or failed frame is said, and the next one goes on from the last good result."""
    if answer.superseded:
        print(f"frame {answer.number}: a newer frame took its place")
    elif answer.missed:
        print(f"frame {answer.number}: late, not shown")
    elif answer.error is not None:
        print(f"frame {answer.number}: failed: {answer.error}")
    else:
        print(f"frame {answer.number}: {answer.verdict}, expected error {answer.report.expected_error_mm} mm, "
              f"{1000 * answer.latency:.0f} ms")


def main(fixed_path, *frame_paths):
    with intrawarp.connect() as server:
        fixed = server.put(fixed_path)
        with server.navigate(fixed=fixed, method="affine", field=None, deadline=DEADLINE_S, resume=30.0) as session:
            for number, path in enumerate(frame_paths):
                session.send(intrawarp.Image.read(path), number=number)
                tell(session.receive())
                if session.newest is not None:
                    tip = session.map_points(TIP_LPS)  # no call: also from another thread, at the tracker's rate
                    print(f"    tip at {tip.points[0].round(2)}, from frame {tip.number}, {tip.age:.1f} s old")
            session.done()
            print(f"{session.statistics.frames_ok if session.statistics else len(frame_paths)} frames in time")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
