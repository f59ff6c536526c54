# SPDX-License-Identifier: Apache-2.0
"""Sessions against the fake server: every frame has one answer, whatever happens to it."""
import threading
import time

import numpy as np
import pytest

import intrawarp as iw
from intrawarp import testing, v1
from intrawarp._core import rendezvous
from intrawarp._session import SessionCore


@pytest.fixture
def fake():
    with testing.FakeServer() as fake:
        yield fake


@pytest.fixture
def server(fake):
    with iw.connect(fake.address) as server:
        yield server


@pytest.fixture(scope="module")
def pair():
    return iw.phantom((20, 18, 16))


def frames_of(pair, count):
    """Frames whose centres of mass move by 1 mm along x from one to the next."""
    out = []
    for k in range(count):
        image = pair.moving
        origin = np.array(image.origin_xyz) + (k, 0, 0)
        out.append(
            iw.Image(image.array, axes="zyx", geometry=iw.Geometry(image.geometry.size_xyz, image.spacing_xyz, origin))
        )
    return out


def take(session, count):
    return [session.receive(timeout=10) for _ in range(count)]


def test_answers_come_in_order_with_their_fields(server, pair):
    with server.navigate(fixed=pair.fixed, method="rigid", field="float32") as session:
        numbers = [session.send(frame) for frame in frames_of(pair, 4)]
        answers = take(session, 4)
        assert [each.number for each in answers] == numbers == [1, 2, 3, 4]
        shifts = [each.field.array[0, 0, 0, 0] for each in answers]
        assert np.allclose(np.diff(shifts), 1.0, atol=1e-3)
        assert all(each.ok and each.latency > 0 and each.report.proto.device == "cpu" for each in answers)
        session.done()
        assert list(session) == []
    assert session.statistics.frames_ok == 4


def test_landmarks_go_with_the_frames_that_follow(fake, server, pair):
    seen = {}

    def note(header):
        seen[header.frame_number] = header.landmarks if header.HasField("landmarks") else None
        return False

    fake.rule("Frame", review="FOLDING", when=note)
    first, second, third, fourth = frames_of(pair, 4)
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session.send(first)
        session.set_landmarks([((1, 2, 3), (4, 5, 6), 2)])
        session.send(second)
        session.set_landmarks([])
        session.send(third)
        session.set_landmarks(None)
        session.send(fourth)
        take(session, 4)
        with pytest.raises(ValueError):
            session.set_landmarks([((1, 2), (4, 5, 6))])
    assert seen[1] is None and seen[4] is None and len(seen[3].landmarks) == 0
    assert [(list(each.fixed), list(each.moving), each.sigma_mm) for each in seen[2].landmarks] == [
        ([1, 2, 3], [4, 5, 6], 2)
    ]


def test_masks_go_with_the_frames_that_follow(fake, server, pair):
    seen = {}

    def note(header):
        seen[header.frame_number] = (header.mask, header.weight)
        return False

    fake.rule("Frame", review="FOLDING", when=note)
    mask = server.put(pair.moving)
    with server.navigate(fixed=pair.fixed, method="rigid", frame_masks=True) as session:
        for masks in ({}, {"mask": mask}, {"mask": mask.name, "weight": mask}, {}):
            session.set_masks(**masks)
            session.send(pair.moving)
        take(session, 4)
        with pytest.raises(iw.InvalidArgument):
            session.set_masks(mask="fixed.nii")
        with pytest.raises(iw.InvalidArgument):
            session.set_masks(weight=pair.moving)
    name = mask.name
    assert [seen[i] for i in sorted(seen)] == [("", ""), (name, ""), (name, name), ("", "")]


def test_a_mask_that_is_gone_is_an_error_of_its_frame(server, pair):
    mask = server.put(pair.moving)
    with server.navigate(fixed=pair.fixed, method="rigid", frame_masks=True) as session:
        session.set_masks(mask)
        mask.delete()
        session.send(pair.moving)
        gone = session.receive(timeout=10).error
        session.set_masks()
        session.send(pair.moving)
        assert isinstance(gone, iw.NotFound) and session.receive(timeout=10).error is None


def test_masks_of_frames_take_a_session_that_expects_them(server, pair):
    mask = server.put(pair.moving)
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        for masks in ({"mask": mask}, {"weight": mask}):
            with pytest.raises(iw.InvalidArgument) as caught:
                session.set_masks(**masks)
            assert caught.value.field == "frame_masks"
        session.set_masks()  # nothing to refuse
        session.send(pair.moving)
        assert session.receive(timeout=10).error is None


def test_landmarks_may_be_taken_back_while_a_frame_is_made(fake, server, pair):
    """Another thread's set_landmarks(None) comes at the worst moment: after the frame has looked at the landmarks."""

    class TakenBack(SessionCore):
        _landmarks = property(
            lambda self: self.__dict__.pop("landmarks", None),
            lambda self, landmarks: self.__dict__.update(landmarks=landmarks),
        )

    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session._core.__class__ = TakenBack
        session.set_landmarks([((1, 2, 3), (4, 5, 6), 2)])
        session.send(pair.moving)
        assert session.receive(timeout=10).ok


def test_iteration_ends_with_the_session(server, pair):
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        for frame in frames_of(pair, 3):
            session.send(frame)
        session.done()
        assert [each.number for each in session] == [1, 2, 3]
    with pytest.raises(iw.errors.SessionEnded):
        session.send(pair.moving)


def test_a_caller_who_only_sends_does_not_hang(fake, server, pair):
    with server.navigate(fixed=pair.fixed, method="rigid", max_answers=5) as session:
        for frame in frames_of(pair, 40):
            session.send(frame)
    answers = list(session)
    assert session.dropped_answers == 35 and [each.number for each in answers] == list(range(36, 41))


def test_a_failed_frame_does_not_end_the_session(fake, server, pair):
    fake.rule("Frame", refuse="OPTIMIZER_DIVERGED", when=lambda header: header.frame_number == 2)
    fake.rule("Frame", review="FOLDING", when=lambda header: header.frame_number == 3)
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        for frame in frames_of(pair, 3):
            session.send(frame)
        first, second, third = take(session, 3)
    assert first.ok and first.error is None
    assert isinstance(second.error, iw.errors.Diverged) and second.verdict == "" and not second.ok
    opened = next(call for call in fake.calls if call.method == "Navigate")
    assert second.error.call_id in opened.metadata["traceparent"] and len(second.error.call_id) == 32
    # Code 0 with a review is not success either.
    assert third.error is None and third.verdict == "REVIEW" and not third.ok and third.reasons[0].cause == "FOLDING"


def test_latest_wins_and_send_never_waits(fake, server, pair):
    fake.rule("Frame", late=0.15)
    with server.navigate(fixed=pair.fixed, method="rigid", latest=True) as session:
        begin = time.monotonic()
        for frame in frames_of(pair, 30):
            session.send(frame)
        assert time.monotonic() - begin < 2.0
        session.done()
        answers = list(session)
    assert sorted(each.number for each in answers) == list(range(1, 31))  # one answer each
    superseded = [each for each in answers if each.superseded]
    assert len(superseded) > 15 and answers[-1].number == 30 and answers[-1].ok
    for each in superseded:
        assert each.error.numbers["superseded_by"] > each.number


def test_deadlines_drop_or_mark(fake, server, pair):
    fake.rule("Frame", late=0.2)
    with server.navigate(fixed=pair.fixed, method="rigid", deadline=0.05) as session:
        session.send(pair.moving)
        session.send(pair.moving, deadline=30)
        missed, kept = take(session, 2)
    assert missed.missed and missed.error.reason == "DEADLINE_PASSED" and kept.ok
    with server.navigate(fixed=pair.fixed, method="rigid", deadline=0.05, late="deliver") as session:
        session.send(pair.moving)
        late = session.receive(timeout=10)
    assert late.late and late.error is None and late.verdict == "REVIEW"


def test_ages_count_from_the_acquisition(server, pair):
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session.send(pair.moving, acquired=time.time() - 5.0)
        answer = session.receive(timeout=10)
        assert 5.0 <= answer.age < 6.0 and 5.0 <= answer.latency < 6.0
        assert 5.0 <= session.map_points([0, 0, 0]).age < 6.0
        time.sleep(0.05)
        assert session.map_points([0, 0, 0]).age > answer.latency
        with pytest.raises(iw.StaleField, match="older|old"):
            session.map_points([0, 0, 0], max_age=1.0)
        assert session.map_points([0, 0, 0], max_age=60.0).number == 1


def test_points_through_the_newest_field(fake, server, pair):
    fake.transform = pair.truth
    with server.navigate(fixed=pair.fixed, field="int16") as session:
        with pytest.raises(iw.StaleField, match="yet"):
            session.map_points([0, 0, 0])
        session.send(pair.moving)
        answer = session.receive(timeout=10)
        mapped = session.map_points(pair.points)
        assert np.abs(mapped.points - pair.moving_points).max() < 0.2
        assert (mapped.number, mapped.verdict) == (answer.number, "OK") and np.asarray(mapped).shape == (24, 3)
        flip = np.array([-1, -1, 1])
        assert np.allclose(session.map_points(pair.points * flip, space="RAS").points, mapped.points * flip)
        back = session.map_points(mapped.points, inverse=True)
        assert np.allclose(back.points, pair.points, atol=1e-2)
        before = fake.count("MapPoints")
        session.map_points(pair.points)
        assert fake.count("MapPoints") == before == 0


def test_points_of_a_session_without_fields(server, pair):
    """Of ffd the affine part alone would be silently wrong; of rigid it is the whole."""
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session.send(pair.moving)
        answer = session.receive(timeout=10)
        shift = answer.report.affine[:3, 3]
        assert np.allclose(session.map_points([1.0, 2.0, 3.0]).points, [1, 2, 3] + shift)
        assert np.allclose(session.map_points([1.0, 2.0, 3.0], inverse=True).points, [1, 2, 3] - shift)
    with server.navigate(fixed=pair.fixed, method="affine,ffd") as session:
        session.send(pair.moving)
        session.receive(timeout=10)
        with pytest.raises(iw.StaleField, match="field="):
            session.map_points([0, 0, 0])


def test_points_from_many_threads_while_frames_come(server, pair):
    problems, ages = [], []
    with server.navigate(fixed=pair.fixed, method="rigid", field="float32", max_answers=4) as session:
        session.send(pair.moving)
        session.receive(timeout=10)
        end = threading.Event()

        def ask():
            try:
                while not end.is_set():
                    mapped = session.map_points(pair.points)
                    # All points of one answer go through one field: a shift.
                    spread = np.ptp(mapped.points - pair.points, axis=0).max()
                    assert spread < 1e-4
                    ages.append(mapped.age)
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for frame in frames_of(pair, 40):
            session.send(frame)
        end.set()
        for thread in threads:
            thread.join()
    assert problems == [] and len(ages) > 20


def test_callbacks_get_every_answer_in_order(server, pair):
    seen = []
    with server.navigate(fixed=pair.fixed, method="rigid") as session:

        @session.on_answer
        def show(answer):
            seen.append(answer.number)

        for frame in frames_of(pair, 5):
            session.send(frame)
        session.done()
        list(session)
    assert seen == [1, 2, 3, 4, 5]


def test_an_exception_of_a_callback_ends_the_session(server, pair):
    session = server.navigate(fixed=pair.fixed, method="rigid")

    @session.on_answer
    def show(answer):
        raise RuntimeError("mine")

    session.send(pair.moving)
    session.receive(timeout=10)  # the answer itself came
    with pytest.raises(RuntimeError, match="mine"):
        session.receive(timeout=10)
    session.close()


def test_arrays_need_their_geometry_once(server, pair):
    array = pair.moving.array
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        with pytest.raises(iw.GeometryError, match="frame_geometry"):
            session.send(array)
    with server.navigate(fixed=pair.fixed, method="rigid", frame_geometry=pair.moving, frame_axes="xyz") as session:
        session.send(pair.moving.array_xyz)
        assert session.receive(timeout=10).ok
        with pytest.raises(iw.GeometryError):
            session.send(array[:, :, :5])
        with pytest.raises(iw.InvalidArgument, match="grow"):
            session.send(pair.moving.array_xyz, number=1)
        assert session.send(pair.moving.array_xyz, number=7) == 7 and session.receive(timeout=10).number == 7


def test_a_frame_may_change_after_send(fake, server, pair):
    """With latest the frame is copied; without, it has gone when send returns."""
    fake.rule("Frame", late=0.05)
    for latest in (False, True):
        with server.navigate(
            fixed=pair.fixed, method="rigid", latest=latest, frame_geometry=pair.moving, frame_axes="zyx"
        ) as session:
            buffer = pair.moving.array.copy()
            session.send(buffer)
            buffer[:] = 0
            answer = session.receive(timeout=10)
            assert answer.error is None, answer.error


@pytest.mark.parametrize(
    "arguments,field",
    [
        ({}, "fixed"),
        ({"fixed": 1, "moving": 2}, "fixed"),
        ({"stride": 4}, "field"),
        ({"coarse_field": True}, "field"),
        ({"field": "int16", "stride": (1, 2)}, "stride"),
        ({"late": "never"}, "late"),
        ({"deadline": -1}, "deadline"),
    ],
)
def test_arguments_are_checked(server, pair, arguments, field):
    volume = server.put(pair.fixed)
    arguments = (
        {"fixed": volume, **arguments}
        if "fixed" not in arguments and field != "fixed"
        else ({key: volume for key in arguments})
    )
    with pytest.raises(ValueError) as caught:
        server.navigate(**arguments)
    assert caught.value.field == field


def test_the_configuration_reaches_the_server(fake, server, pair):
    with server.navigate(
        moving=pair.moving,
        method="ffd",
        iterations=3,
        field="int16",
        stride=2,
        region=((0, 0, 0), (8, 8, 8)),
        latest=True,
        cancel_running=True,
        deadline=1.5,
        late="deliver",
        rate=5,
        resume=30,
        id="room-3",
        idle_timeout=60,
        max_pending=3,
        coarse_field=True,
        frame_masks=True,
        frame_geometry=pair.fixed,
        error_limit_mm=2,
    ) as session:
        config = session.status().config
        assert session.name == "sessions/room-3"
    assert config.moving and not config.fixed and config.options.stages[0].ffd.iterations == 3
    assert config.field.encoding == v1.FIELD_ENCODING_INT16 and list(config.field.stride) == [2, 2, 2]
    assert config.overload_policy == v1.OVERLOAD_POLICY_LATEST_WINS and config.cancel_running
    assert config.frame_deadline.seconds == 1 and config.late_frames == v1.LATE_FRAMES_DELIVER and config.rate_hz == 5
    assert config.resume_window.seconds == 30 and config.idle_timeout.seconds == 60 and config.max_pending == 3
    assert config.coarse_field and config.frame_masks and list(config.frame_geometry.size) == [20, 18, 16]


def test_coarse_fields(server, pair):
    with server.navigate(fixed=pair.fixed, method="ffd", field="float32", coarse_field=True) as session:
        session.send(pair.moving)
        answer = session.receive(timeout=10)
    assert answer.coarse is not None and answer.coarse.geometry == answer.field.geometry


# ---- what breaks ----


def test_a_break_without_a_window_ends_the_session(fake, server, pair):
    fake.rule("Navigate", broken=True, after=1, times=1)
    session = server.navigate(fixed=pair.fixed, method="rigid")
    session.send(pair.moving)
    assert session.receive(timeout=10).ok
    session.send(pair.moving)
    lost = session.receive(timeout=10)
    assert lost.lost and isinstance(lost.error, iw.errors.ConnectionLost)
    with pytest.raises(iw.errors.ConnectionLost):
        session.receive(timeout=10)
    with pytest.raises(iw.errors.ConnectionLost):
        session.send(pair.moving)
    session.close()


def test_a_session_is_taken_up_again(fake, server, pair):
    fake.rule("Navigate", broken=True, after=2, times=1)
    with server.navigate(fixed=pair.fixed, method="rigid", resume=30) as session:
        answers = []
        for frame in frames_of(pair, 6):
            session.send(frame)
            answers.append(session.receive(timeout=10))
        assert session.recoveries == 1
    assert [each.number for each in answers] == [1, 2, 3, 4, 5, 6]
    assert [each.lost for each in answers] == [False, False, True, False, False, False]
    assert fake.count("Navigate") == 2


def test_a_server_that_restarts_within_a_session(fake, server, pair):
    """It forgets the session and the volume: the session is opened anew, and the volume staged again."""
    with server.navigate(fixed=pair.fixed, method="rigid", resume=30) as session:
        session.send(pair.moving)
        first = session.receive(timeout=10)
        fake.restart(forget=True)
        answers = []
        for _ in range(50):
            session.send(pair.moving)
            answers.append(session.receive(timeout=20))
            if answers[-1].error is None:
                break
        assert answers[-1].ok and session.recoveries == 1
        opened = [call for call in fake.calls if call.method == "Navigate"]
        assert len(opened) >= 2
        # It starts from the last good answer.
        initial = session.status().config.options.initial_affine
        assert np.allclose(np.reshape(list(initial.values), (4, 4)), first.report.affine)


def test_a_session_that_is_opened_anew_has_the_arguments_of_its_beginning(fake, server, pair):
    """An iterator is used up by then, and an array may have other values."""
    points = np.array([[1.0, 2.0, 3.0]])
    landmarks = iter([((1, 2, 3), (4, 5, 6))])
    with server.navigate(
        fixed=pair.fixed,
        method="rigid",
        resume=30,
        landmarks=landmarks,
        error_at=points,
        fixed_mask=pair.fixed,
        fixed_weight=pair.fixed,
    ) as session:
        points[:] = 0
        fake.restart(forget=True)
        for _ in range(50):
            session.send(pair.moving)
            if session.receive(timeout=20).error is None:
                break
        options = session.status().config.options
    assert session.recoveries == 1 and options.fixed_mask and options.fixed_weight and not options.moving_weight
    assert [list(each.moving) for each in options.landmarks] == [[4, 5, 6]]
    assert list(options.error.points) == [1, 2, 3]


def test_a_session_goes_over_to_the_next_server(pair):
    with testing.FakeServer() as a, testing.FakeServer() as b:
        fakes = {each.address: each for each in (a, b)}
        with iw.connect(",".join(fakes), recovery_timeout=20) as server:
            fixed = server.put(pair.fixed)
            order = rendezvous(list(fakes), fixed._state.key)
            with server.navigate(fixed=fixed, method="rigid", field="int16") as session:
                assert session.address == order[0]
                session.send(pair.moving)
                assert session.receive(timeout=10).ok
                fakes[order[0]].stop()
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    session.send(pair.moving)
                    answer = session.receive(timeout=20)
                    if answer.error is None:
                        break
                assert answer.ok and session.address == order[1]
                assert session.map_points([0, 0, 0]).number == answer.number


def test_wrong_bytes_end_the_session(fake, server, pair):
    fake.rule("Frame", corrupt=True, times=1)
    session = server.navigate(fixed=pair.fixed, method="rigid", field="float32")
    session.send(pair.moving)
    lost = session.receive(timeout=10)
    assert lost.lost
    with pytest.raises(iw.errors.DataLoss):
        session.receive(timeout=10)
    session.close()


def test_closing_waits_for_what_is_owed_and_leaving_by_an_error_does_not(fake, server, pair):
    fake.rule("Frame", late=0.3)
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session.send(pair.moving)
    assert session.statistics.frames_ok == 1
    begin = time.monotonic()
    fake.clear_rules()
    fake.rule("Frame", late=30)
    with pytest.raises(KeyError):
        with server.navigate(fixed=pair.fixed, method="rigid", resume=30) as session:
            session.send(pair.moving)
            raise KeyError
    assert time.monotonic() - begin < 10
    assert fake._sessions == {}


def test_cancel_ends_it_at_once(fake, server, pair):
    fake.rule("Frame", late=30)
    session = server.navigate(fixed=pair.fixed, method="rigid")
    session.send(pair.moving)
    threading.Timer(0.1, session.cancel).start()
    begin = time.monotonic()
    answer = session.receive(timeout=10)
    assert answer.lost and session.receive(timeout=10) is None
    session.close()
    assert time.monotonic() - begin < 10


def test_refused_shared_memory(fake, server, pair):
    with server.navigate(fixed=pair.fixed, method="rigid") as session:
        session.send(pair.moving)
        assert session.receive(timeout=10).ok and not session.shares_memory
        assert isinstance(session.shared_memory_error, iw.errors.SharedMemoryUnavailable)
    with pytest.raises(iw.errors.SharedMemoryUnavailable):
        server.navigate(fixed=pair.fixed, method="rigid", shared_memory=True)
