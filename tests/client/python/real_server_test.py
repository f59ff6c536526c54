# SPDX-License-Identifier: Apache-2.0
"""The package against a real intrawarpd."""
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import PACKAGE, RealServer

import intrawarp as iw


@pytest.fixture
def server(real):
    with iw.connect(real) as server:
        yield server


def live(server):
    usage = server.info().usage
    return usage.volumes, usage.transforms, usage.sparse_matrices


def test_register_maps_and_cleans_up(real, pair):
    with iw.connect(real) as server:
        before = live(server)
    with iw.connect(real) as server:
        result = server.register(pair[0], pair[1], method="affine", metric="ssd")
        points = np.array([[0.0, 0.0, 50.0], [5.0, 10.0, 45.0]])
        mapped = result.map_points(points)
        assert np.allclose(mapped, points + 2.0, atol=0.2)
        assert np.allclose(result.map_points(points * [-1, -1, 1], space="RAS"), mapped * [-1, -1, 1], atol=1e-9)
        assert np.allclose(result.inverse_points(mapped), points, atol=1e-3)
        warped = result.warped()
        assert warped.geometry.same_grid(pair[0].geometry)
        assert np.abs(warped.array[4:-4, 4:-4, 4:-4] - pair[0].array[4:-4, 4:-4, 4:-4]).mean() < 20
        assert live(server)[0] == before[0] + 2
    with iw.connect(real) as server:
        assert live(server) == before


def test_result_is_not_a_truth_value(server, pair):
    result = server.register(pair[0], pair[1], method="rigid", iterations=1, levels=1)
    with pytest.raises(TypeError, match="raise_if_not_ok"):
        bool(result)
    if not result.ok:
        with pytest.raises(iw.ReviewNeeded, match=str(result.reasons[0])[:20]):
            result.raise_if_not_ok()


def test_errors_have_reason_field_and_call(server, pair):
    with pytest.raises(iw.NotFound) as caught:
        server.register(pair[0], "volumes/none")
    assert (caught.value.reason, caught.value.resource) == ("RESOURCE_NOT_FOUND", "volumes/none")
    assert len(caught.value.call_id) == 32 and caught.value.call_id in str(caught.value)
    with pytest.raises(iw.InvalidArgument) as caught:
        server.register(pair[0], pair[1], method="ffd", spacing_vox=0.1)
    assert caught.value.field == "options.stages[0].ffd.spacing_vox"


def test_landmarks_are_met_and_reported(server, pair):
    point = np.array([0.0, 0.0, 50.0])
    plain = server.register(pair[0], pair[1], method="affine", iterations=5, levels=1)
    assert plain.report.landmarks is None
    wanted = plain.map_points([point])[0] + (5, 0, 0)
    pulled = server.register(
        pair[0], pair[1], method="affine", iterations=5, levels=1, landmarks=[(point, wanted, 0.2)]
    )
    assert len(pulled.report.landmarks.distance_mm) == 1 and pulled.report.landmarks.max_mm < 4


def test_a_report_tells_whether_anything_slid(server, pair):
    options = {"method": "affine,ffd", "metric": "ssd", "iterations": 3, "levels": 1}
    assert server.register(pair[0], pair[1], **options).report.second_layer_fraction is None
    report = server.register(pair[0], pair[1], sliding=True, **options).report
    assert 0 <= report.second_layer_fraction < 1
    assert report.second_layer_fraction == report.proto.stages[1].second_layer_fraction
    assert not report.proto.stages[0].HasField("second_layer_fraction")


@pytest.mark.parametrize("shared", [False, True])
def test_session_answers_every_frame(server, pair, shared):
    with server.navigate(
        fixed=pair[0], method="affine", iterations=3, levels=1, field="int16", shared_memory=shared
    ) as session:
        numbers = [session.send(pair[1]) for _ in range(3)]
        answers = [session.receive(timeout=60) for _ in numbers]
        assert [answer.number for answer in answers] == numbers
        assert all(answer.error is None and answer.field.array.shape == (20, 22, 24, 3) for answer in answers)
        assert all(answer.shared == shared for answer in answers)
        here = session.map_points([[0.0, 0.0, 50.0]])
        there = server.map_points(answers[-1].transform, [[0.0, 0.0, 50.0]])
        assert np.allclose(here.points, there, atol=0.01) and here.number == numbers[-1] and here.age > 0
    assert session.statistics.frames_ok == 3


def test_multiply_is_scipys(server):
    sparse = pytest.importorskip("scipy.sparse")
    a = sparse.random(60, 40, 0.1, random_state=1, format="csc")
    b = sparse.random(40, 50, 0.1, random_state=2)
    product = server.multiply(a, b)
    assert product.dtype == np.float64 and abs(product - a @ b).max() < 1e-12


def test_new_values_and_products_of_three(server):
    sparse = pytest.importorskip("scipy.sparse")
    a = sparse.random(60, 60, 0.1, random_state=1, format="csr")
    p = sparse.random(60, 20, 0.1, random_state=2)
    kept = server.put_matrix(a)
    on_server = server.put_matrix(p)
    expected = p.T @ a @ p
    assert abs(server.multiply_triple(kept, on_server) - expected).max() < 1e-12
    first = server.multiply_triple_resident(kept, on_server, reuse_plan=True)
    values = np.cos(np.arange(a.nnz))
    changed = a.copy()
    changed.data[:] = values
    second = server.put_matrix_values(kept, values)
    assert (second.download() != changed).nnz == 0
    third = server.multiply_triple_resident(second, on_server, reuse_plan=True)
    assert abs(first.download() - expected).max() < 1e-12
    assert abs(third.download() - p.T @ changed @ p).max() < 1e-12


# ---- the same place in every client ----


CLI = os.environ.get("INTRAWARP_CLI", "")


def command_line(address, *arguments, check=True):
    made = subprocess.run([CLI, f"--server={address}", *arguments], capture_output=True, text=True)
    assert not check or made.returncode == 0, made.stderr
    return made


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
@pytest.mark.parametrize("exact", [True, False])
def test_the_command_line_reads_our_files_as_we_do(server, real, pair, tmp_path, suffix, exact):
    """A volume is known by its bytes and its grid: where no number is rounded, the same name says that both clients
    mean the same."""
    rotated, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    direction = np.array([[0, -1, 0], [0, 0, 1.0], [1, 0, 0]]) if exact else rotated
    image = iw.Image(
        pair[0].array,
        axes="zyx",
        space="LPS",
        spacing_xyz=(1.5, 2.0, 2.25),
        origin_xyz=(-12.5, 4.25, 100.0),
        direction_xyz=direction,
    )
    image.write(tmp_path / f"a{suffix}")
    name = command_line(real, "volume", "put", str(tmp_path / f"a{suffix}")).stdout.strip()
    found = server.volume(name)
    assert found.geometry.same_grid(image.geometry, 1e-9 if exact else 1e-4)
    read = server.put(iw.Image.read(tmp_path / f"a{suffix}"))
    assert read.geometry.same_grid(found.geometry, 1e-9) and (read.name == name or not exact)
    command_line(real, "volume", "get", name, f"--out={tmp_path / 'back.nii.gz'}")
    back = iw.Image.read(tmp_path / "back.nii.gz")
    assert back.geometry.same_grid(image.geometry, 1e-4) and (back.array == image.array).all()
    server.delete(name)


def test_the_same_points_by_every_way(server, real, pair, tmp_path):
    """Server, command line, dense field and control grid here, on points in the image and beyond its border."""
    result = server.register(pair[0], pair[1], method="affine,ffd", iterations=5, levels=2)
    grid = pair[0].geometry
    points = grid.index_to_physical(np.random.default_rng(5).uniform(0, np.array(grid.size_xyz) - 1, (2000, 3)))
    there = result.map_points(points)
    np.savetxt(tmp_path / "p.csv", points, delimiter=",", header="x,y,z", comments="", fmt="%.17g")
    command_line(
        real, "points", f"--transform={result.name}", f"--in={tmp_path / 'p.csv'}", f"--out={tmp_path / 'q.csv'}"
    )
    by_hand = np.loadtxt(tmp_path / "q.csv", delimiter=",", skiprows=1)
    assert np.abs(by_hand - there).max() < 1e-6
    assert np.abs(result.field("control").map_points(points) - there).max() < 1e-4
    assert np.abs(result.field("float32").map_points(points) - there).max() < 0.05
    assert np.abs(result.field("int16").map_points(points) - there).max() < 0.06
    outside = grid.index_to_physical([[-30.0, 5, 5], [5, 5, 90.0]])
    assert np.abs(result.field("control").map_points(outside) - result.map_points(outside)).max() < 1e-6
    assert np.abs(result.field("control").inverse_points(there) - points).max() < 1e-2


def test_a_velocitys_points(server, pair):
    result = server.register(pair[0], pair[1], method="affine,log-demons", iterations=5, levels=2, field="velocity")
    grid = pair[0].geometry
    points = grid.index_to_physical(np.random.default_rng(5).uniform(1, np.array(grid.size_xyz) - 2, (500, 3)))
    there = result.map_points(points)
    assert np.abs(result.field("float32").map_points(points) - there).max() < 1e-3
    assert np.abs(result.field("velocity").map_points(points) - there).max() < 0.1
    assert np.abs(result.inverse_points(there) - points).max() < 0.1


def test_fields_go_back_as_transforms(server, pair):
    result = server.register(pair[0], pair[1], method="affine,ffd", iterations=3, levels=1)
    points = pair[0].geometry.index_to_physical([[8.0, 9.0, 10.0], [4.5, 6.25, 7.0]])
    there = result.map_points(points)
    for encoding, tolerance in (("control", 1e-4), ("float32", 0.05)):
        again = server.put_transform(result.field(encoding))
        assert np.abs(again.map_points(points) - there).max() < tolerance
    matrix = server.put_transform(result.affine)
    assert np.allclose(matrix.map_points(points), points @ result.affine[:3, :3].T + result.affine[:3, 3])


# ---- cancellation, limits ----


def test_a_cancelled_registration_leaves_nothing(server, real):
    pair = iw.phantom((64, 64, 48))
    fixed, moving = server.put(pair.fixed), server.put(pair.moving)
    cancellation = iw.Cancellation()
    threading.Timer(0.3, cancellation.cancel).start()
    with pytest.raises(iw.Cancelled):
        server.register(fixed, moving, method="ffd", iterations=10000, cancel=cancellation)
    with pytest.raises(iw.DeadlineExceeded):
        server.register(fixed, moving, method="ffd", iterations=10000, timeout=0.3)
    with pytest.raises(iw.DeadlineExceeded) as caught:
        server.register(fixed, moving, method="ffd", iterations=10000, budget=0.05)
    assert caught.value.reason == "BUDGET_USED_UP"
    end = time.monotonic() + 20
    while server.info().usage.jobs:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert server.register(fixed, moving, method="ffd", iterations=10000, budget=0.3, best_effort=True).name


def test_operations(server, pair):
    operation = server.start_register(pair[0], pair[1], method="rigid", iterations=3)
    result = operation.wait(timeout=60)
    assert operation.state == "DONE" and result.report.affine.shape == (4, 4) and result.warped().geometry is not None
    slow = iw.phantom((64, 64, 48))
    running = server.start_register(slow.fixed, slow.moving, method="ffd", iterations=10000)
    with pytest.raises(iw.DeadlineExceeded):
        running.wait(timeout=0.2)
    running.cancel()
    with pytest.raises(iw.Cancelled):
        running.wait(timeout=60)


# ---- servers of other kinds ----


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server "localhost", a client, and a stranger's authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ca", "stranger"):
        openssl(
            folder,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={authority}",
            "-keyout",
            f"{authority}.key",
            "-out",
            f"{authority}.pem",
        )
    (folder / "server.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "client"):
        openssl(
            folder,
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
        )
        openssl(
            folder,
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            f"{name}.ext",
            "-out",
            f"{name}.pem",
        )
    return folder


def test_tls_and_tokens(certificates, tmp_path, pair):
    made = subprocess.run(
        [CLI, "token", "new", "--name=or3", "--roles=frame,stage"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    (tmp_path / "token").write_text(made[0] + "\n")
    (tmp_path / "tokens").write_text(made[1] + "\n")
    (tmp_path / "tokens").chmod(0o600)
    server = RealServer(
        tmp_path,
        f"--tls_cert={certificates}/server.pem",
        f"--tls_key={certificates}/server.key",
        f"--tokens={tmp_path}/tokens",
    )
    try:
        address = "localhost:" + server.address.rpartition(":")[2]
        ca = certificates / "ca.pem"
        with iw.connect(address, tls_ca=ca, token_file=tmp_path / "token") as known:
            assert known.register(pair[0], pair[1], method="rigid", iterations=1, levels=1).name
            with pytest.raises(iw.PermissionDenied):
                from intrawarp import v1
                from intrawarp._io import run

                run(known._core.call("SetLogLevel", v1.SetLogLevelRequest(level=v1.LOG_LEVEL_INFO)))
            with known.navigate(fixed=pair[0], method="rigid", iterations=1, levels=1) as session:
                session.send(pair[1])
                assert session.receive(timeout=60).error is None
        with iw.connect(address, tls_ca=ca, token="wrong") as stranger, pytest.raises(iw.NotAuthenticated):
            stranger.volumes()
        with iw.connect(address, tls_ca=ca) as nobody, pytest.raises(iw.NotAuthenticated):
            nobody.volumes()
        for options in ({"tls_ca": certificates / "stranger.pem"}, {}):
            with iw.connect(address, timeout=10, **options) as deceived, pytest.raises(iw.Unavailable):
                deceived.info()
    finally:
        server.stop()


def test_client_certificates(certificates, tmp_path):
    (tmp_path / "identities").write_text("or3 frame,stage cn:client\n")
    server = RealServer(
        tmp_path,
        f"--tls_cert={certificates}/server.pem",
        f"--tls_key={certificates}/server.key",
        f"--tls_client_ca={certificates}/ca.pem",
        f"--identities={tmp_path}/identities",
    )
    try:
        address = "localhost:" + server.address.rpartition(":")[2]
        options = {"tls_ca": certificates / "ca.pem"}
        with iw.connect(
            address, tls_cert=certificates / "client.pem", tls_key=certificates / "client.key", **options
        ) as known:
            assert known.volumes() == []
        with iw.connect(address, timeout=10, **options) as nobody, pytest.raises((iw.Unavailable, iw.NotAuthenticated)):
            nobody.volumes()
        with pytest.raises(iw.InvalidArgument, match="tls_key"):
            iw.connect(address, tls_cert=certificates / "client.pem", **options)
    finally:
        server.stop()


def test_a_session_survives_the_death_of_its_server(tmp_path, pair):
    """Two servers; the one that carries the session is killed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    servers = {each.address: each for each in (RealServer(tmp_path / "a"), RealServer(tmp_path / "b"))}
    try:
        with iw.connect(",".join(servers)) as both:
            with both.navigate(
                fixed=pair[0], method="affine", iterations=3, levels=1, field="float32", rate=5
            ) as session:
                session.send(pair[1])
                assert session.receive(timeout=60).error is None
                first = session.address
                servers[first].stop(signal.SIGKILL)
                answers = []
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    session.send(pair[1])
                    answers.append(session.receive(timeout=60))
                    if answers[-1].error is None:
                        break
                assert answers[-1].error is None and session.address != first and session.recoveries == 1
                assert session.map_points([0.0, 0.0, 50.0]).number == answers[-1].number
            assert both.register(pair[0], pair[1], method="rigid", iterations=1, levels=1).address != first
    finally:
        for server in servers.values():
            server.stop(signal.SIGKILL)


def test_a_session_outlives_its_connection(real, pair, tmp_path):
    """The relay between client and server is cut; the session is the same one afterwards."""
    relay = Relay(real)
    try:
        with iw.connect(relay.address) as server:
            with server.navigate(
                fixed=pair[0], method="rigid", iterations=1, levels=1, resume=60, field="int16", shared_memory=False
            ) as session:
                session.send(pair[1])
                assert session.receive(timeout=60).error is None
                name = session.name
                relay.cut()
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    session.send(pair[1])
                    answer = session.receive(timeout=60)
                    if answer.error is None:
                        break
                assert answer.error is None and session.name == name and session.recoveries >= 1
                assert session.status().resumptions >= 1
    finally:
        relay.close()


def test_an_upload_survives_a_cut(real, tmp_path):
    relay = Relay(real)
    image = iw.phantom((128, 128, 96)).fixed
    try:
        with iw.connect(relay.address, chunk_bytes=256 << 10) as server:
            cuts = []

            def cut(step):
                if step.fraction > 0.4 * (len(cuts) + 1) and len(cuts) < 2:
                    cuts.append(step.fraction)
                    relay.cut()

            volume = server.put(image, progress=cut)
            assert len(cuts) == 2
            cuts.append(0)
            assert (volume.download().array == image.array).all()
    finally:
        relay.close()


class Relay:
    """Passes the bytes of TCP connections on, until it cuts them."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def close(self):
        self._listener.close()
        self.cut()


# ---- asyncio, and what lasts ----


async def test_asyncio(real, pair):
    async with iw.aio.connect(real) as server:
        result = await server.register(pair[0], pair[1], method="affine", metric="ssd", field="int16")
        assert np.allclose((await result.field("int16")).map_points([[0.0, 0.0, 50.0]]), [[2.0, 2.0, 52.0]], atol=0.2)
        async with server.navigate(
            fixed=pair[0], method="rigid", iterations=1, levels=1, field="float32", shared_memory=True
        ) as session:
            for _ in range(4):
                await session.send(pair[1])
            await session.done()
            answers = [answer async for answer in session]
        assert len(answers) == 4 and all(each.error is None and each.shared for each in answers)


def test_the_self_test_passes(real):
    made = subprocess.run(
        [sys.executable, "-m", "intrawarp", "selftest", real],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE / "src")},
    )
    assert made.returncode == 0 and made.stdout.count("ok ") == 6, made.stdout + made.stderr


def test_sessions_and_calls_leave_nothing(real, pair):
    with iw.connect(real) as server:
        fixed = server.put(pair[0])
        for _ in range(3):
            server.info()
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        for shared in (True, False) * 3:
            with server.navigate(
                fixed=fixed, method="rigid", iterations=1, levels=1, field="int16", shared_memory=shared
            ) as session:
                session.send(pair[1])
                assert session.receive(timeout=60).error is None
            session.newest.field.map_points([0.0, 0.0, 50.0])
        for _ in range(200):
            server.info()
        end = time.monotonic() + 10
        while threading.active_count() > before[1] and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() <= before[1]
        assert len(os.listdir("/proc/self/fd")) <= before[0] + 2
