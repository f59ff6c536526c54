# SPDX-License-Identifier: Apache-2.0
"""The asyncio client: the same logic, on a loop that it never blocks, and cancelled with its tasks."""
import asyncio
import inspect
import time

import numpy as np
import pytest

import intrawarp as iw
from intrawarp import _sync, aio, testing


@pytest.fixture
def fake():
    with testing.FakeServer() as fake:
        yield fake


@pytest.fixture(scope="module")
def pair():
    return iw.phantom((20, 18, 16))


def test_the_twins_have_the_same_methods():
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
    for name in aio.__all__:
        one, other = getattr(aio, name), getattr(_sync, name)
        if inspect.isfunction(one):
            assert inspect.signature(one).parameters == inspect.signature(other).parameters
            continue
        members = {renamed.get(key, key): value for key, value in vars(one).items() if inspect.isfunction(value)}
        twins = {key: value for key, value in vars(other).items() if inspect.isfunction(value)}
        assert set(members) == set(twins), name
        for key, value in members.items():
            assert list(inspect.signature(value).parameters) == list(inspect.signature(twins[key]).parameters), key
            assert inspect.getdoc(value) == inspect.getdoc(twins[key])
            assert not inspect.iscoroutinefunction(twins[key])


async def test_everything_once(fake, pair):
    before = set(fake.names())
    async with aio.connect(fake.address) as server:
        assert (await server.info()).revision == "fake" and await server.is_serving()
        fixed, moving = await asyncio.gather(server.put(pair.fixed), server.put(pair.moving))
        seen = []
        result = await server.register(fixed, moving, method="affine", progress=seen.append)
        assert result.ok and seen[-1].fraction == 1
        mapped = await result.map_points(pair.points)
        assert np.allclose((await result.field()).map_points(pair.points), mapped, atol=1e-4)
        assert np.allclose(await result.inverse_points(mapped), pair.points, atol=1e-6)
        assert (await result.warped()).geometry == pair.fixed.geometry
        assert (await fixed.download()).geometry == pair.fixed.geometry
        assert [each.name for each in await server.volumes()] == sorted((fixed.name, moving.name))
        operation = await server.start_register(fixed, moving, method="rigid")
        assert (await operation.wait(timeout=10)).ok
        with pytest.raises(iw.errors.NotFound):
            await server.volume("none")
    assert set(fake.names()) == before


async def test_a_session(fake, pair):
    async with aio.connect(fake.address) as server:
        async with server.navigate(fixed=pair.fixed, method="rigid", field="int16") as session:
            for _ in range(3):
                await session.send(pair.moving)
            await session.done()
            answers = [answer async for answer in session]
            assert [each.number for each in answers] == [1, 2, 3] and all(each.ok for each in answers)
            # From another thread, while the loop runs.
            mapped = await asyncio.get_running_loop().run_in_executor(None, session.map_points, pair.points)
            assert mapped.number == 3
        assert session.statistics.frames_ok == 3


async def test_a_session_can_be_awaited_and_fails_to_open_by_its_error(fake, pair):
    async with aio.connect(fake.address) as server:
        session = await server.navigate(fixed=pair.fixed, method="rigid")
        await session.send(pair.moving)
        assert (await session.receive(timeout=10)).ok
        await session.close()
        fake.rule("Navigate", refuse="TOO_MANY_SESSIONS", retry_after=1.0)
        with pytest.raises(iw.errors.Busy):
            await server.navigate(fixed=pair.fixed, method="rigid")
        with pytest.raises(iw.errors.Busy):
            async with server.navigate(fixed=pair.fixed, method="rigid"):
                pytest.fail("it is not open")


async def test_latest_and_recovery(fake, pair):
    fake.rule("Navigate", broken=True, after=2, times=1)
    fake.rule("Frame", late=0.05)
    async with aio.connect(fake.address) as server:
        async with server.navigate(fixed=pair.fixed, method="rigid", latest=True, resume=30) as session:
            seen = []

            @session.on_answer
            async def note(answer):
                await asyncio.sleep(0)
                seen.append(answer.number)

            for _ in range(20):
                await session.send(pair.moving)
                await asyncio.sleep(0.02)
            await session.done()
            answers = [answer async for answer in session]
    assert sorted(each.number for each in answers) == list(range(1, 21)) == sorted(seen)
    assert session.recoveries == 1 and answers[-1].ok


@pytest.mark.parametrize("method", ["Register", "Download", "Upload", "MapPoints"])
async def test_a_cancelled_task_cancels_on_the_server(fake, pair, method):
    async with aio.connect(fake.address) as server:
        volume = await server.put(pair.fixed)
        result = await server.register(volume, volume, method="rigid")
        fake.rule(method, late=30.0)
        calls = {
            "Register": lambda: server.register(volume, volume),
            "Download": volume.download,
            "Upload": lambda: server.put(pair.moving),
            "MapPoints": lambda: result.map_points([0, 0, 0]),
        }
        before = fake.cancelled(method)
        task = asyncio.ensure_future(calls[method]())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        end = time.monotonic() + 10
        while fake.cancelled(method) == before:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        cancellation = iw.Cancellation()
        asyncio.get_running_loop().call_later(0.1, cancellation.cancel)
        keywords = {"cancel": cancellation}
        with pytest.raises(iw.errors.Cancelled):
            if method == "Upload":
                await server.put(pair.moving, **keywords)
            elif method == "Register":
                await server.register(volume, volume, **keywords)
            elif method == "Download":
                await volume.download(**keywords)
            else:
                await result.map_points([0, 0, 0], **keywords)
        fake.clear_rules()


async def test_timeouts_and_wait_for(fake, pair):
    async with aio.connect(fake.address) as server:
        volume = await server.put(pair.fixed)
        fake.rule("*", late=30.0)
        with pytest.raises(iw.errors.DeadlineExceeded):
            await server.info(timeout=0.1)
        with pytest.raises(iw.errors.DeadlineExceeded):
            await server.register(volume, volume, timeout=0.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(volume.download(), 0.1)
        fake.clear_rules()
        assert (await server.info()).revision == "fake"


async def test_transfers_resume(fake):
    large = iw.phantom((96, 96, 80)).fixed
    fake.rule("Upload", broken=True, after=1, times=2)
    fake.rule("Download", broken=True, after=1, times=2)
    async with aio.connect(fake.address, chunk_bytes=256 << 10) as server:
        volume = await server.put(large)
        assert ((await volume.download()).array == large.array).all()
    assert fake.count("Upload") == 3 and fake.count("Download") == 3


async def test_early_answers_do_not_hang_an_upload(fake):
    """The server answers before it has read all chunks: gRPC's writer then waits for a status that comes only once the
    answer is read."""
    large = iw.phantom((96, 96, 80)).fixed
    async with aio.connect(fake.address, chunk_bytes=64 << 10) as server:
        volume = await server.put(large)
        for _ in range(20):
            assert (await asyncio.wait_for(server.put(large), 30)).name == volume.name
        fake.rule("Upload", refuse="OWNER_QUOTA")
        for _ in range(5):
            with pytest.raises(iw.errors.OutOfCapacity):
                await asyncio.wait_for(server.put(large), 30)


async def test_the_loop_goes_on_meanwhile(fake, pair):
    """A registration that takes long does not hold up other tasks."""
    async with aio.connect(fake.address) as server:
        volume = await server.put(pair.fixed)
        fake.rule("Register", late=0.5)
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.ensure_future(tick())
        await asyncio.gather(*(server.register(volume, volume) for _ in range(5)))
        ticker.cancel()
        assert ticks > 5


async def test_no_task_is_left_behind(fake, pair):
    async with aio.connect(fake.address) as server:
        volume = await server.put(pair.fixed)
        async with server.navigate(fixed=volume, method="rigid", latest=True) as session:
            await session.send(pair.moving)
            await session.receive(timeout=10)
        await volume.download()
    await asyncio.sleep(0.1)
    mine = [task for task in asyncio.all_tasks() if task.get_name().startswith("intrawarp")]
    assert mine == []
