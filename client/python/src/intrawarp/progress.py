# SPDX-License-Identifier: Apache-2.0
"""Progress of long calls: a callback, or a bar of tqdm, rich or plain text.

The fraction of a Progress never falls, whatever levels a registration goes through and however often a transfer
resumes.
"""
import queue
import sys
import threading
import time
from typing import Any, Callable, Optional, Tuple, Union

from ._io import Cancellation


class Progress:
    """One step of a long call.

    Attributes:
        phase: "upload", "download", "register" or "multiply".
        fraction: 0 to 1, an estimate; it never falls.
        text: the step in words ("stage 2 of 2, level 1 of 3, iteration 40").
        done, total: bytes, or iterations of the level; a total of 0 is unknown.
        value: the objective of a registration; None elsewhere and before it is known.
    """

    __slots__ = ("phase", "fraction", "text", "done", "total", "value")

    def __init__(
        self, phase: str, fraction: float, text: str, done: int, total: int, value: Optional[float] = None
    ) -> None:
        self.phase = phase
        self.fraction = fraction
        self.text = text
        self.done = done
        self.total = total
        self.value = value

    def __repr__(self) -> str:
        return f"Progress({self.phase}, {self.fraction:.0%}, {self.text!r})"


# The steps of a registration without named stages: Progress.stage in registration.proto.
_AUTOMATIC_STEPS = 8

ProgressCallback = Callable[[Progress], Any]
# None or False: nothing; True: a bar, of tqdm or rich where there is one; a callback; the class or module tqdm.
ProgressArgument = Union[None, bool, ProgressCallback, Any]


class _TqdmBar:
    def __init__(self, make: Any) -> None:
        self._make = make
        self._bar: Any = None

    def __call__(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = self._make(
                total=1000,
                desc=progress.phase,
                leave=False,
                bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}",
            )
        self._bar.set_postfix_str(progress.text, refresh=False)
        self._bar.update(round(1000 * progress.fraction) - self._bar.n)
        if progress.fraction >= 1:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _RichBar:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._display: Any = None
        self._task: Any = None

    def __call__(self, progress: Progress) -> None:
        if self._display is None:
            self._display = self._module.Progress(transient=True)
            self._display.start()
            self._task = self._display.add_task(progress.phase, total=1.0)
        self._display.update(self._task, completed=progress.fraction, description=f"{progress.phase} {progress.text}")
        if progress.fraction >= 1:
            self.close()

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None


class _TextBar:
    """One line on stderr that rewrites itself; nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._shown = 0.0
        self._open = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._shown < 0.1 and progress.fraction < 1):
            return
        self._shown = now
        self._open = True
        sys.stderr.write(f"\r\x1b[K{progress.phase} {progress.fraction:4.0%} {progress.text}")
        sys.stderr.flush()
        if progress.fraction >= 1:
            self.close()

    def close(self) -> None:
        if self._open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._open = False


def _find_bar() -> Any:
    try:
        from tqdm.auto import tqdm

        return _TqdmBar(tqdm)
    except ImportError:
        pass
    try:
        import rich.progress

        return _RichBar(rich.progress)
    except ImportError:
        return _TextBar()


class Reporter:
    """What a call reports to. Exceptions of the callback end the call."""

    def __init__(self, phase: str, argument: ProgressArgument) -> None:
        self._phase = phase
        self._highest = 0.0
        self._callback: Any = None
        if argument is None or argument is False:
            return
        if argument is True:
            self._callback = _find_bar()
        elif hasattr(argument, "tqdm"):  # the module
            self._callback = _TqdmBar(argument.tqdm)
        elif isinstance(argument, type) and hasattr(argument, "set_postfix_str"):
            self._callback = _TqdmBar(argument)
        else:
            self._callback = argument

    @property
    def wanted(self) -> bool:
        return self._callback is not None

    def __call__(
        self, fraction: float, text: str, done: int = 0, total: int = 0, value: Optional[float] = None
    ) -> None:
        if self._callback is None:
            return
        self._highest = max(self._highest, min(1.0, fraction))
        self._callback(Progress(self._phase, self._highest, text, done, total, value))

    def bytes(self, done: int, total: int) -> None:
        if self._callback is not None:
            self(done / total if total else 1.0, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", done, total)

    def close(self) -> None:
        close = getattr(self._callback, "close", None)
        if close is not None and isinstance(self._callback, (_TqdmBar, _RichBar, _TextBar)):
            close()


def stage_fraction(
    stage: int, stages: int, level: int, levels: int, iteration: int, iterations: int
) -> Tuple[float, str]:
    """An estimate of how much of a registration is done, and its step in words, counted from 1.

    Without named stages (`stages` is 0) the server counts its steps, and leaves some of them out. A `stage` below 0 is
    the work before the first one.
    """
    if stage < 0:
        return 0.0, "before the first stage"
    within = min(1.0, iteration / iterations) if iterations else 0.5
    of_stage = (level + within) / max(1, levels)
    fraction = (stage + min(1.0, of_stage)) / max(stages or _AUTOMATIC_STEPS, stage + 1)
    of = f" of {stages}" if stages else ""
    return fraction, f"stage {stage + 1}{of}, level {level + 1} of {max(1, levels)}, iteration {iteration}"


class Steps:
    """The progress of a long call as an iterator; the call runs on a thread of its own.

        steps = intrawarp.steps(server.register, fixed, moving)
        for step in steps:
            print(f"{step.fraction:.0%} {step.text}")
        result = steps.result()

    Leaving the loop early does not end the call; `cancel` does.
    """

    def __init__(self, call: Callable[..., Any], arguments: Tuple[Any, ...], keywords: Any) -> None:
        self._queue: "queue.SimpleQueue[Optional[Progress]]" = queue.SimpleQueue()
        self._cancellation = keywords.setdefault("cancel", Cancellation())
        self._outcome: Any = None
        self._error: Optional[BaseException] = None
        self._ended = False
        self._thread = threading.Thread(
            target=self._run, args=(call, arguments, keywords), name="intrawarp-steps", daemon=True
        )
        self._thread.start()

    def _run(self, call: Callable[..., Any], arguments: Tuple[Any, ...], keywords: Any) -> None:
        try:
            self._outcome = call(*arguments, progress=self._queue.put, **keywords)
        except BaseException as error:
            self._error = error
        self._queue.put(None)

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> Progress:
        step = None if self._ended else self._queue.get()
        if step is None:
            self._ended = True
            raise StopIteration
        return step

    def cancel(self) -> None:
        self._cancellation.cancel()

    def result(self) -> Any:
        """Waits for the call's end; its result. Raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._outcome


def steps(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Steps:
    """Begins `call(*arguments, **keywords)`, a method that takes progress= and cancel=; iterate over its progress."""
    return Steps(call, arguments, keywords)
