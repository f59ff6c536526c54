# SPDX-License-Identifier: Apache-2.0
"""The client's own logic, against the fake server: errors, retries, resumption, cancellation, limits, clean-up."""
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

import intrawarp as iw
from intrawarp import testing, v1
from intrawarp._core import parse_names, rendezvous
from intrawarp.progress import stage_fraction


@pytest.fixture
def fake():
    with testing.FakeServer() as fake:
        yield fake


@pytest.fixture
def server(fake):
    with iw.connect(fake.address, chunk_bytes=256 << 10) as server:
        yield server


@pytest.fixture(scope="module")
def large():
    """Of several chunks."""
    return iw.phantom((96, 96, 80)).fixed


def eventually(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.01)


# ---- errors ----


@pytest.mark.parametrize("reason", [name for name in v1.ErrorReason.keys() if name != "ERROR_REASON_UNSPECIFIED"])
def test_every_reason_has_a_class(fake, server, reason):
    """A reason without an entry would be taken for its status code alone."""
    assert reason in iw.errors._BY_REASON
    fake.rule(
        "GetServerInfo",
        refuse=reason,
        message="no",
        field="a.b",
        resource="volumes/x",
        numbers={"asked": 5, "in_use": 2.5, "text": "x"},
        retry_after=1.5,
    )
    with pytest.raises(iw.errors._BY_REASON[reason]) as caught:
        server.info()
    error = caught.value
    assert (error.reason, error.field, error.resource) == (reason, "a.b", "volumes/x")
    assert error.numbers == {"asked": 5, "in_use": 2.5} and error.metadata["text"] == "x"
    assert error.retry_after == 1.5 and error.method.endswith("/GetServerInfo") and error.address == fake.address
    assert error.call_id in fake.calls[-1].metadata["traceparent"]
    for part in ("no", "a.b", "volumes/x", "asked 5", "1.5 s", error.call_id):
        assert part in str(error)


def test_a_reason_of_a_later_version_is_its_status(fake, server):
    fake.rule("GetServerInfo", refuse="MOON_IN_THE_WRONG_PHASE")
    with pytest.raises(iw.errors.OutOfCapacity) as caught:
        server.info()
    assert caught.value.reason == "MOON_IN_THE_WRONG_PHASE"


def test_bases_group_what_is_handled_alike():
    assert issubclass(iw.errors.Busy, (iw.errors.OutOfCapacity, iw.errors.TryAgain))
    assert issubclass(iw.errors.ConnectionLost, ConnectionError) and issubclass(iw.errors.NotFound, LookupError)
    assert issubclass(iw.errors.DeadlineExceeded, TimeoutError) and issubclass(iw.errors.InvalidArgument, ValueError)


def test_errors_survive_pickling():
    import pickle

    error = iw.errors.Busy("full", reason="QUEUE_FULL", metadata={"in_use": "3"}, retry_after=2.0, call_id="ab")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error) and back.__dict__ == error.__dict__ and str(back) == str(error)


def test_details_that_are_no_message_are_left_out():
    status = v1.GoogleRpcStatus(code=5, message="gone")
    packed = status.details.add()
    packed.type_url, packed.value = "type.googleapis.com/google.rpc.ErrorInfo", b"\xff\xff\xff"
    error = iw.errors.from_call(5, "gone", status.SerializeToString())
    assert isinstance(error, iw.errors.NotFound) and error.reason == ""
    assert isinstance(iw.errors.from_call(5, "gone", b"\xff\xff"), iw.errors.NotFound)
    assert isinstance(iw.errors.from_call(77, "odd", None), iw.errors.InternalError)


def test_nobody_there():
    begin = time.monotonic()
    with iw.connect("127.0.0.1:1") as server:
        for call in (
            server.info,
            lambda: server.put(iw.phantom((8, 8, 8)).fixed),
            lambda: server.volume("x"),
            lambda: server.register("volumes/a", "volumes/b"),
        ):
            with pytest.raises(iw.errors.ConnectionLost) as caught:
                call()
            assert caught.value.retry_after == 1.0 and caught.value.reason == ""
        assert not server.is_serving()
    assert time.monotonic() - begin < 20


# ---- options ----


@pytest.mark.parametrize(
    "arguments,field",
    [
        ({"address": ""}, "address"),
        ({"address": "a:1,,b:2"}, "address"),
        ({"address": "a:1,b"}, "address"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"stall_timeout": -1}, "stall_timeout"),
        ({"token": "secret"}, "token_file"),
        ({"token": "two words", "tls_ca": "CA"}, "token_file"),
    ],
)
def test_options_out_of_range(tmp_path, arguments, field):
    if "tls_ca" in arguments:
        (tmp_path / "ca").write_text("-----BEGIN CERTIFICATE-----\n")
        arguments = {**arguments, "tls_ca": tmp_path / "ca"}
    with pytest.raises(iw.errors.InvalidArgument) as caught:
        iw.connect(**{"address": "localhost:1", **arguments})
    assert caught.value.field == field


def test_files_of_credentials(tmp_path, monkeypatch):
    (tmp_path / "no").write_text("no PEM")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(iw.errors.InvalidArgument, match="PEM"):
        iw.connect("a:1", tls_ca=tmp_path / "no")
    with pytest.raises(iw.errors.InvalidArgument, match="token"):
        iw.connect("a:1", token_file=tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        iw.connect("a:1", tls_ca=tmp_path / "none")
    monkeypatch.setenv("INTRAWARP_TOKEN_FILE", str(tmp_path / "no"))
    with pytest.raises(iw.errors.InvalidArgument):
        iw.connect("a:1")


def test_the_address_comes_from_the_environment(fake, monkeypatch):
    monkeypatch.setenv("INTRAWARP_SERVER", fake.address)
    with iw.connect() as server:
        assert server.info().revision == "fake"
    monkeypatch.delenv("INTRAWARP_SERVER")
    with pytest.raises(iw.errors.InvalidArgument, match="INTRAWARP_SERVER"):
        iw.connect()


def test_names_of_several_servers():
    assert parse_names("a:1,b:2") == (["a:1", "b:2"], "")
    assert parse_names("ipv4:1.2.3.4:1,5.6.7.8:2") == (["ipv4:1.2.3.4:1", "ipv4:5.6.7.8:2"], "")
    assert parse_names("ipv4:///1.2.3.4:1,5.6.7.8:2")[0][0] == "ipv4:1.2.3.4:1"
    assert parse_names("ipv6:[::1]:1,[::2]:2") == (["ipv6:[::1]:1", "ipv6:[::2]:2"], "")
    assert parse_names("dns:///or:50051") == ([], "or:50051") and parse_names("dns:or:5") == ([], "or:5")
    assert parse_names("dns://1.1.1.1/or:5") == (["dns://1.1.1.1/or:5"], "")
    assert parse_names("unix:/run/x") == (["unix:/run/x"], "")
    for bad in ("a:1,b:0", "a:1,b:99999", "::1:5,b:1", "a:1," * 300 + "a:1", ""):
        with pytest.raises(iw.errors.InvalidArgument):
            parse_names(bad)


def test_the_order_of_servers_is_the_cpp_clients():
    """tests/client/server_set_test.cc: the weight is the first 8 bytes of SHA-256(address + newline + key)."""
    import hashlib

    servers = [f"server{i}:50051" for i in range(5)]
    for key in ("", "a", "0f" * 32):
        order = rendezvous(servers, key)
        assert sorted(order) == servers
        weights = [hashlib.sha256(f"{each}\n{key}".encode()).hexdigest()[:16] for each in order]
        assert weights == sorted(weights, reverse=True)
        # One that goes moves only its own keys.
        assert rendezvous([each for each in servers if each != order[2]], key) == order[:2] + order[3:]


# ---- uploads and downloads ----


def test_an_upload_resumes_where_it_got_to(fake, server, large):
    fake.rule("Upload", broken=True, after=1, times=2)
    volume = server.put(large)
    assert fake.count("Upload") == 3 and fake.count("GetUploadStatus") == 2
    assert (volume.download().array == large.array).all()


def test_an_upload_that_never_gets_further_gives_up(fake, server, large):
    fake.rule("Upload", broken=True, after=0)
    with iw.connect(fake.address, transfer_attempts=3) as impatient:
        with pytest.raises(iw.errors.ConnectionLost):
            impatient.put(large)
    assert fake.count("Upload") <= 3


def test_a_server_that_restarts_within_an_upload(fake, server, large):
    begun = threading.Event()

    def restart():
        begun.wait(10)
        fake.restart()

    thread = threading.Thread(target=restart)
    thread.start()
    volume = server.put(large, progress=lambda step: begun.set() if step.done > 1 << 20 else None)
    thread.join()
    assert (volume.download().array == large.array).all()


def test_a_download_resumes_and_checks(fake, server, large):
    volume = server.put(large)
    fake.rule("Download", broken=True, after=2, times=2)
    seen = []
    assert (volume.download(progress=seen.append).array == large.array).all()
    assert fake.count("Download") == 3
    assert [step.fraction for step in seen] == sorted(step.fraction for step in seen) and seen[-1].fraction == 1
    fake.rule("Download", corrupt=True, after=1, times=1)
    with pytest.raises(iw.errors.DataLoss, match="checksum") as caught:
        volume.download()
    assert caught.value.call_id


def test_an_object_that_changes_within_a_download(fake, server, large):
    volume = server.put(large)
    fake.rule("Download", broken=True, after=1, times=1)
    stored = fake._objects[volume.name]
    fake.rule(
        "Download",
        when=lambda request: request.offset > 0
        and bool(setattr(stored, "image", iw.phantom((96, 96, 80), seed=9).fixed))
        or False,
    )
    with pytest.raises(iw.errors.ContentChanged):
        volume.download()


def test_a_silent_connection_is_left(fake, large):
    """The download goes silent, and so does health: the client makes another connection and goes on."""
    with iw.connect(fake.address, stall_timeout=0.2) as server:
        volume = server.put(large)
        fake.rule("Download", silent=True, after=1, times=1)
        hang = threading.Event()
        from intrawarp._link import Link

        plain = Link.is_serving
        asked = []

        async def silent_once(self, service="", timeout=None, cancellation=None, channel=None):
            if channel is not None and not asked:
                asked.append(channel)
                raise iw.errors.DeadlineExceeded("silent", code="DEADLINE_EXCEEDED", method="health")
            return await plain(self, service, timeout, cancellation, channel)

        Link.is_serving = silent_once
        try:
            assert (volume.download().array == large.array).all()
        finally:
            Link.is_serving = plain
            hang.set()
        assert asked and fake.count("Download") == 2
        # A slow answer over a connection that lives is waited for.
        fake.clear_rules()
        fake.rule("Download", late=1.0, times=1)
        assert (volume.download().array == large.array).all() and fake.count("Download") == 3


def test_an_answer_too_large_is_refused_before_memory_is_taken(fake, large):
    with iw.connect(fake.address, max_answer_bytes=1 << 20) as server:
        volume = server.put(large)
        with pytest.raises(iw.errors.OutOfCapacity, match="max_answer_bytes"):
            volume.download()


def test_uploads_are_idempotent_and_ids_are_kept(fake, server, large):
    first, second = server.put(large), server.put(large)
    assert first.name == second.name and len(fake.names()) == 1
    named = server.put(large, id="mine")
    assert named.name == "volumes/mine" and server.put(large, id="mine").name == named.name
    with pytest.raises(iw.errors.AlreadyExists) as caught:
        server.put(iw.phantom((8, 8, 8)).fixed, id="mine")
    assert caught.value.resource == "volumes/mine"


# ---- limits, cancellation ----


def test_every_call_has_a_timeout(fake, large):
    with iw.connect(fake.address, timeout=0.2) as server:
        volume = server.put(large)
        result = server.register(volume, volume)
        fake.rule("*", late=30.0)
        for call in (
            server.info,
            server.volumes,
            lambda: volume.download(timeout=0.2),
            lambda: server.put(iw.phantom((8, 8, 8)).fixed, timeout=0.2),
            lambda: server.register(volume, volume, timeout=0.2),
            lambda: result.map_points([0, 0, 0]),
            lambda: result.warp(timeout=0.2),
            lambda: result.field(timeout=0.2),
            lambda: server.navigate(fixed=volume, timeout=0.2),
            volume.delete,
        ):
            begin = time.monotonic()
            with pytest.raises(iw.errors.DeadlineExceeded):
                call()
            assert time.monotonic() - begin < 10
        fake.clear_rules()
    for bad in (0, -1):
        with iw.connect(fake.address) as server, pytest.raises(iw.errors.InvalidArgument):
            server.info(timeout=bad)


@pytest.mark.parametrize("method", ["Register", "Download", "Upload", "MapPoints", "WarpVolume"])
def test_cancellation_reaches_the_server(fake, server, large, method):
    volume = server.put(large)
    result = server.register(volume, volume)
    fake.rule(method, late=30.0)
    cancellation = iw.Cancellation()
    threading.Timer(0.2, cancellation.cancel).start()
    calls = {
        "Register": lambda: server.register(volume, volume, cancel=cancellation),
        "Download": lambda: volume.download(cancel=cancellation),
        "Upload": lambda: server.put(iw.phantom((8, 8, 8)).fixed, cancel=cancellation),
        "MapPoints": lambda: result.map_points([0, 0, 0], cancel=cancellation),
        "WarpVolume": lambda: result.warp(cancel=cancellation),
    }
    before = fake.cancelled(method)
    with pytest.raises(iw.errors.Cancelled):
        calls[method]()
    eventually(lambda: fake.cancelled(method) == before + 1)
    with pytest.raises(iw.errors.Cancelled):  # for good
        calls[method]()
    fake.clear_rules()


INTERRUPTED = """
import sys, intrawarp
with intrawarp.connect(sys.argv[1]) as server:
    pair = intrawarp.phantom((8, 8, 8))
    print("ready", flush=True)
    try:
        if sys.argv[2] == "Register":
            server.register(pair.fixed, pair.moving)
        else:
            session = server.navigate(fixed=pair.fixed, method="rigid")
            session.send(pair.moving)
            with session:
                session.receive()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("method", ["Register", "Navigate"])
def test_ctrl_c_ends_the_work_on_the_server(fake, method):
    fake.rule("Register", late=30.0)
    fake.rule("Frame", late=30.0)
    source = str(pathlib.Path(iw.__file__).resolve().parents[1])
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", INTERRUPTED, fake.address, method],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert process.stdout.readline() == "ready\n"
    eventually(lambda: fake.count("Register" if method == "Register" else "Frame") == 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(15) == 0
    process.stdout.close()
    eventually(lambda: fake.cancelled(method) == 1)
    assert fake.names() == []


# ---- results ----


def test_a_verdict_is_not_the_absence_of_an_error(fake, server):
    pair = iw.phantom((24, 24, 24))
    fake.rule("Register", review=("ERROR_ABOVE_LIMIT", "LATE"), message="look at it")
    result = server.register(pair.fixed, pair.moving)
    assert result.verdict == "REVIEW" and not result.ok
    assert [each.cause for each in result.reasons] == ["ERROR_ABOVE_LIMIT", "LATE"]
    with pytest.raises(iw.errors.ReviewNeeded, match="look at it"):
        result.raise_if_not_ok()
    with pytest.raises(TypeError):
        bool(result)
    fake.clear_rules()
    server.register(pair.fixed, pair.moving).raise_if_not_ok()


def test_what_a_result_fetches_it_fetches_when_asked(fake, server):
    pair = iw.phantom((32, 30, 28))
    fake.transform = pair.truth
    result = server.register(pair.fixed, pair.moving, method="affine,ffd")
    assert fake.count("Download") == 0 and fake.count("WarpVolume") == 0
    assert result.expected_error_mm == 0.5
    assert np.allclose(result.error_map.bound.array, 1.0)
    assert result.affine.shape == (4, 4)
    field = result.field()
    assert np.allclose(field.map_points(pair.points), pair.moving_points, atol=0.05)
    assert np.allclose(result.map_points(pair.points), pair.moving_points, atol=0.05)
    assert np.allclose(result.inverse_points(pair.moving_points), pair.points, atol=0.05)
    assert result.field() is field and fake.count("Download") == 1
    assert np.abs(result.field("int16", stride=2).map_points(pair.points) - pair.moving_points).max() < 0.2
    part = result.field(region=((4, 4, 4), (8, 6, 5)))
    assert part.array.shape == (5, 6, 8, 3) and np.allclose(part.array, field.array[4:9, 4:10, 4:12])
    inner = (slice(6, -6),) * 3
    warped = result.warped()
    assert np.abs(warped.array[inner] - pair.fixed.array[inner]).mean() < 25
    again = server.transform(result.name)
    assert again.report.verdict == "OK" and np.allclose(again.affine, result.affine)


def test_report_is_plain_values(fake, server):
    import json

    pair = iw.phantom((16, 16, 16))
    report = server.register(pair.fixed, pair.moving).report
    parsed = json.loads(report.to_json())
    assert parsed["verdict"] == "VERDICT_OK" and parsed["error"]["expected_mm"] == 0.5
    assert report.stop_reason == "CONVERGED" and report.latency_ms["total"] >= 0


def test_progress_only_rises(fake, server):
    pair = iw.phantom((16, 16, 16))
    seen = []
    server.register(pair.fixed, pair.moving, method="rigid,affine,ffd", progress=seen.append)
    fractions = [step.fraction for step in seen]
    assert len(seen) > 6 and fractions == sorted(fractions) and fractions[-1] == 1
    assert seen[0].value is None and "stage 1 of 3, level 1 of 2" in seen[0].text
    steps = iw.steps(server.register, pair.fixed, pair.moving, method="ffd")
    assert [each.phase for each in steps][0] == "register" and steps.result().ok
    failing = iw.steps(server.register, pair.fixed, "volumes/none")
    assert list(failing) == []
    with pytest.raises(iw.errors.NotFound):
        failing.result()


def test_steps_that_the_server_chooses_fill_no_bar_too_early():
    before, words = stage_fraction(-1, 0, 0, 4, 3, 0)
    assert (before, words) == (0, "before the first stage")
    ends = [stage_fraction(step, 0, 2, 3, 100, 100) for step in range(8)]
    assert [text for _, text in ends][3] == "stage 4, level 3 of 3, iteration 100"
    fractions = [fraction for fraction, _ in ends]
    assert fractions == sorted(fractions) and fractions[2] < 0.5 and fractions[-1] == 1
    assert stage_fraction(0, 2, 1, 2, 100, 100) == (0.5, "stage 1 of 2, level 2 of 2, iteration 100")


def test_a_bar_is_anybodys(fake, server, capsys):
    pair = iw.phantom((16, 16, 16))
    server.register(pair.fixed, pair.moving, progress=True)
    made = []

    class tqdm:
        def __init__(self, **options):
            made.append(self)
            self.n, self.total = 0, options["total"]

        def set_postfix_str(self, text, refresh=True):
            self.text = text

        def update(self, count):
            assert count >= 0
            self.n += count

        def close(self):
            self.closed = True

    server.register(pair.fixed, pair.moving, progress=tqdm)
    assert made[-1].n == made[-1].total and made[-1].closed


def test_an_exception_of_a_callback_ends_the_call(fake, server):
    pair = iw.phantom((16, 16, 16))

    def callback(step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        server.register(pair.fixed, pair.moving, progress=callback)
    assert server.register(pair.fixed, pair.moving).ok


@pytest.mark.parametrize(
    "arguments,field",
    [
        ({"method": "thin-plate"}, "method"),
        ({"method": []}, "method"),
        ({"method": "ffd", "spacing": 5}, "spacing"),
        ({"method": "ffd", "metric": "sad"}, "metric"),
        ({"method": "ffd", "iterations": "many"}, "iterations"),
        ({"iterations": 5}, "iterations"),
        ({"initial": np.eye(3)}, "initial"),
        ({"budget": -1}, "budget"),
        ({"method": "rigid", "initial": np.full((4, 4), np.nan)}, "initial"),
        ({"error_at": [1, 2]}, "points"),
        ({"landmarks": [((0, 0, 0),)]}, "landmarks[0]"),
        ({"landmarks": [((0, 0, 0), (1, 1, 1)), ((0, 0), (1, 1))]}, "landmarks[1]"),
        ({"landmarks": [((0, 0, np.nan), (1, 1, 1))]}, "landmarks[0]"),
        ({"field": "double"}, "field"),
        ({"ttl": "a day"}, "ttl"),
    ],
)
def test_options_are_checked_before_a_call(fake, server, arguments, field):
    pair = iw.phantom((8, 8, 8))
    with pytest.raises(ValueError) as caught:
        server.register(pair.fixed, pair.moving, **arguments)
    assert caught.value.field == field
    assert fake.count("Register") == 0


def test_options_reach_the_server_as_the_command_line_sends_them(fake, server):
    pair = iw.phantom((8, 8, 8))
    server.register(
        pair.fixed,
        pair.moving,
        method="affine,ffd",
        metric="lncc",
        spacing_vox=4,
        budget=2.5,
        best_effort=True,
        error_limit_mm=3,
        optimizer="cg",
        initial=np.eye(4),
        fixed_mask=pair.fixed,
        moving_weight=pair.moving,
        landmarks=[((1, 2, 3), np.array([4, 5, 6])), ((7, 8, 9), (7, 8, 9), 0.5)],
    )
    options = next(call.request for call in fake.calls if call.method == "Register").options
    assert options.stages[0].affine.metric == v1.METRIC_NGF and options.stages[1].ffd.metric == v1.METRIC_LNCC
    assert options.stages[1].ffd.spacing_vox == 4 and options.stages[1].ffd.optimizer == v1.OPTIMIZER_CONJUGATE_GRADIENT
    assert (options.budget.seconds, options.budget.nanos) == (2, 500_000_000) and options.best_effort
    assert [list(each.fixed) + list(each.moving) for each in options.landmarks] == [[1, 2, 3, 4, 5, 6], [7, 8, 9] * 2]
    assert not options.landmarks[0].HasField("sigma_mm") and options.landmarks[1].sigma_mm == 0.5
    assert list(options.initial_affine.values) == np.eye(4).reshape(-1).tolist() and options.fixed_mask
    assert options.moving_weight and not options.moving_mask and not options.fixed_weight
    server.register(pair.fixed, pair.moving, method=[("rigid", {"levels": np.int64(2)}), iw.stage("log-demons")])
    options = fake.calls[-1].request.options
    assert options.stages[0].rigid.levels == 2 and options.stages[0].rigid.metric == v1.METRIC_SSD
    assert options.stages[1].WhichOneof("method") == "log_demons"


# ---- clean-up ----


def test_with_deletes_what_it_made_and_nothing_else(fake):
    pair = iw.phantom((8, 8, 8))
    other = iw.phantom((8, 8, 8), seed=5)
    keeper = iw.connect(fake.address)
    kept = keeper.put(pair.fixed)
    with iw.connect(fake.address) as server:
        server.register(pair.fixed, other.moving, method="rigid")
        server.put_transform(np.eye(4), id="mine")
        assert len(fake.names()) == 4
    assert fake.names() == [kept.name]
    with iw.connect(fake.address, delete_at_end=False) as server:
        server.put(other.fixed)
    assert len(fake.names()) == 2
    assert keeper.close(delete=True) == [] and len(fake.names()) == 1
    with pytest.raises(iw.errors.Cancelled, match="closed"):
        keeper.info()


def test_an_end_without_a_server_does_not_hang(fake):
    begin = time.monotonic()
    with iw.connect(fake.address) as server:
        server.put(iw.phantom((8, 8, 8)).fixed)
        fake.stop()
    assert time.monotonic() - begin < 15


def test_deleting_by_handle_and_by_name(fake, server):
    pair = iw.phantom((8, 8, 8))
    volume = server.put(pair.fixed)
    result = server.register(volume, pair.moving)
    server.delete(result.name)
    volume.delete()
    with pytest.raises(iw.errors.NotFound):
        volume.delete()
    with pytest.raises(iw.errors.InvalidArgument):
        server.delete("nonsense")


def test_lists_have_all_pages(fake, server):
    from intrawarp import _core

    small = iw.phantom((4, 4, 4)).fixed
    names = {server.put(small, id=f"v{i:02}").name for i in range(7)}
    old, _core._PAGE = _core._PAGE, 3
    try:
        assert {each.name for each in server.volumes()} == names
        assert fake.count("ListVolumes") == 3
    finally:
        _core._PAGE = old
    assert server.volume("v03").name == "volumes/v03"


# ---- products, operations, transforms ----


def test_products(fake, server):
    sparse = pytest.importorskip("scipy.sparse", reason="python3-scipy is not installed")
    a = sparse.random(30, 20, 0.2, random_state=1, format="coo")
    b = sparse.random(20, 25, 0.2, random_state=2, dtype=np.float32)
    assert abs(server.multiply(a, b) - a @ b).max() < 1e-6
    assert [name for name in fake.names() if name.startswith("sparse")] == []
    doubled = sparse.coo_matrix(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    kept = server.put_matrix(doubled)
    assert kept.nnz == 2 and (kept.download().toarray() == doubled.toarray()).all()
    product = server.multiply_resident(kept, kept, id="c")
    assert product.name == "sparseMatrices/c" and (product.download().toarray() == (doubled @ doubled).toarray()).all()
    for bad in (np.eye(3), sparse.eye(2, dtype=complex)):
        with pytest.raises(iw.errors.InvalidArgument):
            server.multiply(bad, kept)
    empty = sparse.csr_matrix((0, 5))
    assert server.put_matrix(empty).download().shape == (0, 5)


def test_products_of_three_and_new_values(fake, server):
    sparse = pytest.importorskip("scipy.sparse", reason="python3-scipy is not installed")
    a = sparse.random(30, 30, 0.2, random_state=1, format="csr")
    p = sparse.random(30, 12, 0.2, random_state=2)
    r = sparse.random(9, 30, 0.2, random_state=3)
    steps = []
    product = server.multiply_triple(a, p, r=r, progress=lambda fraction, step: steps.append(fraction))
    assert abs(product - r @ a @ p).max() < 1e-12
    assert abs(server.multiply_triple(a, p, transpose_a=True, alpha=2.0) - 2 * p.T @ a.T @ p).max() < 1e-12
    assert [name for name in fake.names() if name.startswith("sparse")] == []
    kept = server.put_matrix(a)
    values = np.arange(a.nnz, dtype=np.float32)
    second = server.put_matrix_values(kept, values, id="second")
    assert second.name == "sparseMatrices/second" and second.proto.shape.value_type == iw.v1.VALUE_TYPE_FLOAT32
    expected = a.astype(np.float32)
    expected.data[:] = values
    assert (second.download() != expected).nnz == 0
    third = server.put_matrix_values("sparseMatrices/second", values + 1.0)
    assert (third.download().data == values + 1).all()
    coarse = server.multiply_triple_resident(third, p, id="coarse", reuse_plan=True, precision="fp64")
    assert coarse.name == "sparseMatrices/coarse" and coarse.shape == (12, 12)
    for bad in (values[:-1], values.reshape(1, -1), values.astype(complex), a):
        with pytest.raises(iw.errors.InvalidArgument):
            server.put_matrix_values(kept, bad)
    with pytest.raises(iw.errors.InvalidArgument):
        server.put_matrix_values(a, values)
    with pytest.raises(iw.errors.NotFound):
        server.put_matrix_values("sparseMatrices/none", values)


def test_a_matrix_that_is_none_is_refused():
    from intrawarp._sparse import decode, encode

    sparse = pytest.importorskip("scipy.sparse", reason="python3-scipy is not installed")
    shape, view = encode(sparse.eye(4, format="csr"))
    data = np.frombuffer(view, np.uint8).copy()
    assert (decode(shape, data) - sparse.eye(4)).nnz == 0
    for place, value in ((0, 1), (8, 200), (40, 77)):
        bad = data.copy()
        bad[place] = value
        with pytest.raises(iw.errors.InternalError):
            decode(shape, bad)
    with pytest.raises(iw.errors.InternalError):
        decode(shape, data[:-1])


def test_an_operation_outlives_its_call(fake, server):
    pair = iw.phantom((8, 8, 8))
    operation = server.start_register(pair.fixed, pair.moving, method="rigid", request_id="night-1")
    assert operation.name == "operations/night-1"
    result = operation.wait(timeout=10)
    assert result.verdict == "OK" and result.fixed.geometry == pair.fixed.geometry
    assert server.operation("night-1").state == "DONE" and [each.name for each in server.operations()] == [
        operation.name
    ]


def test_transforms_come_back_as_they_went(fake, server):
    matrix = np.eye(4)
    matrix[:3, 3] = (1, 2, 3)
    there = server.put_transform(matrix)
    assert np.allclose(there.map_points([[0, 0, 0]]), [[1, 2, 3]]) and np.allclose(there.affine, matrix)
    pair = iw.phantom((16, 14, 12))
    dense = server.put_transform(pair.truth)
    assert np.allclose(dense.field().array, pair.truth.array, atol=1e-5)
    with pytest.raises(iw.errors.PreconditionFailed):
        dense.field("control")
    with pytest.raises(iw.errors.InvalidArgument):
        server.put_transform(np.eye(3))


# ---- several servers ----


def test_work_goes_to_the_next_server(large):
    pair = iw.phantom((16, 16, 16))
    with testing.FakeServer() as a, testing.FakeServer() as b, testing.FakeServer() as c:
        fakes = {each.address: each for each in (a, b, c)}
        with iw.connect(",".join(fakes)) as server:
            fixed = server.put(pair.fixed)
            order = rendezvous(list(fakes), fixed._state.key)
            assert fixed.address == order[0]
            moving = server.put(pair.moving)
            first = server.register(fixed, moving)
            assert first.address == order[0]
            fakes[order[0]].stop()
            second = server.register(fixed, moving)  # staged again where it goes
            assert second.address == order[1] and second.verdict == "OK"
            assert second.warped().geometry == pair.fixed.geometry
            fakes[order[1]].serving = False
            assert server.register(fixed, moving).address == order[2]
            fakes[order[2]].rule("Register", refuse="TOO_MANY_STREAMS", times=1)
            with pytest.raises(iw.errors.Busy):
                server.register(fixed, moving)
            assert {each.address for each in server.volumes()} == {order[2]}


def test_a_callers_mistake_is_not_tried_elsewhere():
    with testing.FakeServer() as a, testing.FakeServer() as b:
        with iw.connect(f"{a.address},{b.address}") as server:
            pair = iw.phantom((8, 8, 8))
            for fake in (a, b):
                fake.rule("Register", refuse="INVALID_FIELD", field="x")
            with pytest.raises(iw.errors.InvalidArgument):
                server.register(pair.fixed, pair.moving)
            assert a.count("Register") + b.count("Register") == 1


@pytest.mark.parametrize("method", ["register", "start_register"])
def test_an_iterator_of_landmarks_reaches_the_server_that_takes_over(method):
    pair = iw.phantom((8, 8, 8))
    with testing.FakeServer() as a, testing.FakeServer() as b:
        fakes = {each.address: each for each in (a, b)}
        with iw.connect(",".join(fakes)) as server:
            fixed = server.put(pair.fixed)
            fakes[fixed.address].rule("Register", refuse="SERVER_STOPPING")
            getattr(server, method)(fixed, pair.moving, landmarks=iter([((1, 2, 3), (4, 5, 6))]))
        sent = [call.request.options.landmarks for fake in (a, b) for call in fake.calls if call.method == "Register"]
    assert [[list(each.moving) for each in landmarks] for landmarks in sent] == [[[4, 5, 6]]] * 2


def test_an_iterator_of_landmarks_serves_the_second_attempt_at_a_forgetful_server():
    pair = iw.phantom((8, 8, 8))
    with testing.FakeServer() as a, testing.FakeServer() as b:
        with iw.connect(f"{a.address},{b.address}") as server:
            fixed, moving = server.put(pair.fixed), server.put(pair.moving)
            server.register(fixed, moving)
            for fake in (a, b):
                fake.restart(forget=True)
            server.register(fixed, moving, landmarks=iter([((1, 2, 3), (4, 5, 6))]))
        sent = [call.request.options.landmarks for fake in (a, b) for call in fake.calls if call.method == "Register"]
    assert [len(landmarks) for landmarks in sent] == [0, 1, 1]


# ---- what lasts ----


def test_nothing_grows(fake):
    """Threads and descriptors are what they were, after calls, transfers, sessions and connections."""
    pair = iw.phantom((8, 8, 8))

    def work():
        with iw.connect(fake.address) as server:
            fixed = server.put(pair.fixed)
            for _ in range(20):
                server.info()
            server.register(fixed, pair.moving, method="rigid")
            fixed.download()
            for _ in range(3):
                with server.navigate(fixed=fixed, method="rigid", latest=True) as session:
                    session.send(pair.moving)
                    session.receive(timeout=10)

    def count():
        mine = [each for each in threading.enumerate() if not each.name.startswith("intrawarp-fake")]
        return len(mine), len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        work()
    eventually(
        lambda: not any(each.name in ("intrawarp-answers", "intrawarp-frames") for each in threading.enumerate())
    )
    before = count()
    for _ in range(8):
        work()
    eventually(lambda: count()[0] <= before[0] + 1)
    assert count()[1] <= before[1] + 4


def test_many_threads_share_one_server(fake, server):
    pair = iw.phantom((8, 8, 8))
    fixed = server.put(pair.fixed)
    problems = []

    def work(seed):
        try:
            moving = server.put(iw.phantom((8, 8, 8), seed=seed).moving)
            assert server.register(fixed, moving).ok
            assert moving.download().geometry == pair.fixed.geometry
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_the_server_is_asked_with_the_conventions_of_the_wire(fake, server):
    """A plain grpc stub without the package sees the same server."""
    channel = grpc.insecure_channel(fake.address)
    answer = channel.unary_unary("/intrawarp.v1.ServerService/GetServerInfo")(b"")
    assert v1.GetServerInfoResponse.FromString(answer).info.revision == "fake"
    channel.close()
