# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio. The synchronous client (`intrawarp.connect`) has the same classes and methods, without
`await`: tools/make_sync.py makes it of this file, and everything below the methods is shared.

    async with intrawarp.aio.connect("or3:50051") as server:
        preop = await server.put("preop.nii.gz")
        result = await server.register(preop, "intraop.nii.gz")
        print(result.verdict, result.expected_error_mm)

A call that is cancelled with its task is cancelled on the server, too. A server, its volumes and its sessions belong to
the event loop they were first used on; `Session.map_points` may be called from any thread.
"""
import os
from typing import Any, Callable, Coroutine, Dict, Generator, List, Optional, Tuple, Union

from . import _display, errors, v1
from ._calls import Calls, MatrixState, OperationState, TransformState, VolumeState
from ._geometry import Geometry
from ._io import AioIo, Cancellation
from ._link import Options, read_security
from ._options import Method
from ._session import Answer, MappedPoints, SessionCore
from .field import Field
from .image import Image
from .progress import ProgressArgument
from .report import ErrorMap, Reason, Report, enum_name

__all__ = ["Matrix", "Operation", "Result", "Server", "Session", "Transform", "Volume", "connect"]

PathLike = Union[str, "os.PathLike[str]"]


def connect(
    address: Optional[str] = None,
    *,
    timeout: float = 30.0,
    tls_ca: Optional[PathLike] = None,
    tls_cert: Optional[PathLike] = None,
    tls_key: Optional[PathLike] = None,
    token_file: Optional[PathLike] = None,
    token: Optional[str] = None,
    delete_at_end: bool = True,
    chunk_bytes: int = 1 << 20,
    max_answer_bytes: int = 16 << 30,
    transfer_attempts: int = 6,
    stall_timeout: float = 0.5,
    keepalive: float = 20.0,
    probe_timeout: float = 2.0,
    recovery_timeout: float = 30.0,
    routing_key: str = "",
    authority: str = "",
) -> "Server":
    """A server, or several behind one name. It connects with the first call, so that this never waits or fails for want
    of a server.

    Args:
        address: HOST:PORT, "unix:/path", several as "A:1,B:2", or "dns:///NAME:PORT" for every address of a name. None:
            the environment's INTRAWARP_SERVER. With several, what belongs to one volume goes to one server, and to the
            next one when that fails.
        timeout: seconds for calls with a small answer that give none of their own. Uploads, downloads, registrations
            and products have no limit unless their call gives one.
        tls_ca, tls_cert, tls_key: PEM files: the authorities of the server's certificate, and the client's own chain
            and key. None: INTRAWARP_TLS_CA, INTRAWARP_TLS_CERT, INTRAWARP_TLS_KEY; without an authority, plain text.
        token_file, token: a file whose only word is a bearer token, or the token. None: INTRAWARP_TOKEN_FILE. A token
            needs tls_ca.
        delete_at_end: leaving the `with` block deletes the volumes, results and matrices that were made through this
            server object. What was resident before stays.
        chunk_bytes: of what is sent; at most the server's limits.max_chunk_bytes.
        max_answer_bytes: a volume or field larger than this is refused (OutOfCapacity) before memory is taken.
        transfer_attempts: a transfer gives up after this many streams in a row that brought nothing further.
        stall_timeout: seconds after which an upload or download takes a silent connection for broken, and goes on over
            a new one; 0: keepalive alone decides.
        keepalive: seconds of silence after which a connection is probed.
        probe_timeout: how long one of several servers may take to say that it is well.
        recovery_timeout: for so long a session whose server failed asks all servers again.
        routing_key: sent with every call, for a proxy that chooses a server by it; it also takes the digest's place.
        authority: HOST:PORT that the server's certificate must name, where the address is another.

    Raises:
        InvalidArgument: an empty address, or an argument that lacks another; `field` names it.
        OSError: a file cannot be read.
    """
    environment = os.environ.get
    security = read_security(
        tls_ca or environment("INTRAWARP_TLS_CA"),
        tls_cert or environment("INTRAWARP_TLS_CERT"),
        tls_key or environment("INTRAWARP_TLS_KEY"),
        token_file or (None if token else environment("INTRAWARP_TOKEN_FILE")),
        token,
    )
    for name, value in (
        ("timeout", timeout),
        ("chunk_bytes", chunk_bytes),
        ("transfer_attempts", transfer_attempts),
        ("keepalive", keepalive),
        ("probe_timeout", probe_timeout),
        ("recovery_timeout", recovery_timeout),
        ("max_answer_bytes", max_answer_bytes),
    ):
        if not value > 0:
            raise errors.InvalidArgument(f"{name}: must be above 0", fields=((name, "must be above 0"),))
    if not stall_timeout >= 0:
        raise errors.InvalidArgument("stall_timeout: must be 0 or more", fields=(("stall_timeout", "is negative"),))
    options = Options(
        security=security,
        timeout=timeout,
        chunk_bytes=chunk_bytes,
        max_answer_bytes=max_answer_bytes,
        transfer_attempts=transfer_attempts,
        stall_timeout=stall_timeout,
        keepalive=keepalive,
        probe_timeout=probe_timeout,
        recovery_timeout=recovery_timeout,
        routing_key=routing_key,
        authority=authority,
    )
    target = environment("INTRAWARP_SERVER", "") if address is None else address
    return Server(Calls(AioIo(), target, options), delete_at_end)


class Server:
    """A server, or several. `connect` makes it. Every method may be called from several threads, or tasks of one loop.

    Arguments that many methods share:
        timeout: seconds for the whole call; DeadlineExceeded after that.
        cancel: an `intrawarp.Cancellation`; its `cancel()` ends the call here and on the server.
        progress: True for a bar (tqdm or rich where they are installed), a callback that gets `Progress`, or the class
            or module tqdm.

    Every call can raise Unavailable (no connection, or the server stops), DeadlineExceeded, Cancelled, Busy (try again
    after `retry_after`), NotAuthenticated and PermissionDenied. A method's own errors are listed with it.
    """

    def __init__(self, core: Calls, delete_at_end: bool = True) -> None:
        self._core = core
        self._delete_at_end = delete_at_end

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close(delete=self._delete_at_end)

    async def close(self, *, delete: bool = False, timeout: float = 10.0) -> List[str]:
        """Closes the connections.

        Args:
            delete: first delete what was made through this object, for `timeout` seconds at most.

        Returns:
            The names that could not be deleted.
        """
        left = await self._core.delete_made(timeout) if delete else []
        await self._core.close()
        return left

    @property
    def address(self) -> str:
        """What `connect` was given, or took from INTRAWARP_SERVER."""
        return self._core.target

    def __repr__(self) -> str:
        return f"Server({self._core.target!r})"

    def _repr_html_(self) -> str:
        return _display.rows_html("Server", [("address", self._core.target)])

    # ---- the server itself ----

    async def info(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> v1.ServerInfo:
        """Version, devices, limits, usage. Of several servers, the first that is well."""
        response = await self._core.call("GetServerInfo", v1.GetServerInfoRequest(), timeout, cancel)
        info: v1.ServerInfo = response.info
        return info

    async def is_serving(self, *, timeout: Optional[float] = None) -> bool:
        """Whether the server takes work; of several, whether one does. False where none can be reached."""
        for address in await self._core.addresses():
            try:
                if await self._core.link_at(address).is_serving("", timeout):
                    return True
            except errors.Unavailable:
                continue
        return False

    # ---- volumes ----

    async def put(
        self,
        source: Any,
        *,
        axes: Optional[str] = None,
        space: Optional[str] = None,
        affine: Any = None,
        geometry: Optional[Geometry] = None,
        id: str = "",
        pinned: bool = False,
        ttl: Optional[float] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
        **keys: Any,
    ) -> "Volume":
        """Uploads a volume, where it stays resident. A stream that breaks is resumed where it got to.

        Args:
            source: what `Image.of` takes: an Image; a SimpleITK, ITK, nibabel or pydicom object; a path; or an array
                with axes=, space= and its geometry (spacing_xyz=, origin_xyz=, direction_xyz=, or affine=).
            id: the wanted id; empty: the server chooses one.
            pinned: it stays on the device also where memory is short.
            ttl: seconds after which it goes by itself; None: it stays until it is deleted.

        An upload is idempotent by content: the same voxels without an id are not sent again.

        Raises:
            GeometryError: an array without its geometry; FileError: the path is not an image.
            AlreadyExists: the id is taken by another object.
            OutOfCapacity: larger than the server takes.
        """
        how: Dict[str, Any] = {"axes": axes, "space": space, "affine": affine, "geometry": geometry, **keys}
        how = {name: value for name, value in how.items() if value is not None}
        return Volume(self._core, await self._core.put(source, how, id, pinned, ttl, progress, timeout, cancel))

    async def volumes(
        self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> List["Volume"]:
        """Every volume of the caller, in order of name; of all servers that are well."""
        return [Volume(self._core, each) for each in await self._core.list_states("volumes", timeout, cancel)]

    async def volume(
        self, name: str, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> "Volume":
        """A resident volume by its name "volumes/ID". Raises NotFound."""
        return Volume(self._core, await self._core.get(_named("volumes", name), timeout, cancel))

    async def delete(
        self, what: Any, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> None:
        """Deletes a volume, a result, a transform or a matrix, by its handle or its name. Raises NotFound."""
        await self._core.delete_state(getattr(what, "_state", what), timeout, cancel)

    # ---- registration ----

    async def register(
        self,
        fixed: Any,
        moving: Any,
        *,
        method: Method = "auto",
        fixed_mask: Any = None,
        moving_mask: Any = None,
        fixed_weight: Any = None,
        moving_weight: Any = None,
        initial: Any = None,
        budget: Optional[float] = None,
        best_effort: Optional[bool] = None,
        error_limit_mm: Optional[float] = None,
        error_map: bool = True,
        error_at: Any = None,
        keep_deformation: Optional[bool] = None,
        find_missing_tissue: Optional[bool] = None,
        landmarks: Any = None,
        field: Optional[str] = None,
        id: str = "",
        request_id: str = "",
        ttl: Optional[float] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
        **stage_options: Any,
    ) -> "Result":
        """Registers a moving volume to a fixed one.

        Args:
            fixed, moving: volumes: handles, names "volumes/ID", or anything that `put` takes, which is uploaded.
            method: "auto" (the server chooses by the images); a name ("rigid", "affine", "ffd", "log-demons"); several,
                "affine,ffd" or a list; pairs of a name and its options, [("affine", {"metric": "ngf"}), "ffd"]; or
                messages v1.Stage. Names and options are the ones of registration.proto.
            **stage_options: options of the last stage: metric, levels, iterations, spacing_vox, bending_weight, ...
            fixed_mask, moving_mask: a voxel is left out where the mask is 0; on the grid of its image.
            fixed_weight, moving_weight: how much each voxel counts, 0 to 1; on the grid of its image.
            initial: where to start: a transform (handle or name), or a 4 x 4 matrix, fixed to moving, LPS mm. None: a
                search.
            budget: seconds after which the optimisation ends; with best_effort=True the best result so far is the
                answer.
            error_limit_mm: the expected error above which the verdict is REVIEW; None: 5.
            error_map: the predicted error block by block is wanted (Result.error_map).
            error_at: (N, 3) points of the fixed image, LPS mm, where the error is predicted (report.proto.error_at).
            keep_deformation: a deformation that the gate would undo is the answer all the same.
            find_missing_tissue: looks for tissue that only one image shows, and leaves it out (Report.missing_tissue).
            landmarks: points that belong together: tuples of the fixed point, the moving point and, if known, the
                standard deviation of their distance along each axis in mm (1 without); LPS mm, at most 256. A point
                that must not move is a pair of equal points (Report.landmarks).
            field: the field is wanted with the answer, in this encoding; None: Result.field() fetches it.
            id: the wanted id of the transform. request_id: a repeated request with the same id gets the first one's
                result.
            ttl: seconds after which the transform goes by itself; None: the server's default.

        Returns:
            A Result. Look at `result.ok` or call `result.raise_if_not_ok()`: a call that succeeds can carry a verdict
            that says REVIEW.

        Raises:
            InvalidArgument: an option is unknown or out of range; `field` names it.
            PreconditionFailed: the images do not overlap, one is constant, a mask selects nothing.
            Diverged: no finite, invertible transform was found.
            DeadlineExceeded: the budget was used up without best_effort.
        """
        arguments = {
            "method": method,
            "stage_options": stage_options,
            "fixed_mask": fixed_mask,
            "moving_mask": moving_mask,
            "fixed_weight": fixed_weight,
            "moving_weight": moving_weight,
            "initial": initial,
            "budget": budget,
            "best_effort": best_effort,
            "error_limit_mm": error_limit_mm,
            "error_map": error_map,
            "error_at": error_at,
            "keep_deformation": keep_deformation,
            "find_missing_tissue": find_missing_tissue,
            "landmarks": landmarks,
            "field": field,
            "id": id,
            "request_id": request_id,
            "ttl": ttl,
        }
        return Result(self._core, await self._core.register_images(fixed, moving, arguments, progress, timeout, cancel))

    async def start_register(
        self,
        fixed: Any,
        moving: Any,
        *,
        method: Method = "auto",
        fixed_mask: Any = None,
        moving_mask: Any = None,
        fixed_weight: Any = None,
        moving_weight: Any = None,
        initial: Any = None,
        budget: Optional[float] = None,
        best_effort: Optional[bool] = None,
        error_limit_mm: Optional[float] = None,
        error_map: bool = True,
        error_at: Any = None,
        keep_deformation: Optional[bool] = None,
        find_missing_tissue: Optional[bool] = None,
        landmarks: Any = None,
        id: str = "",
        request_id: str = "",
        ttl: Optional[float] = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
        **stage_options: Any,
    ) -> "Operation":
        """Begins a registration that goes on without this call, whatever becomes of the connection. Arguments as of
        `register`; returns once the work is admitted. `Operation.wait` gives the Result."""
        arguments = {
            "method": method,
            "stage_options": stage_options,
            "fixed_mask": fixed_mask,
            "moving_mask": moving_mask,
            "fixed_weight": fixed_weight,
            "moving_weight": moving_weight,
            "initial": initial,
            "budget": budget,
            "best_effort": best_effort,
            "error_limit_mm": error_limit_mm,
            "error_map": error_map,
            "error_at": error_at,
            "keep_deformation": keep_deformation,
            "find_missing_tissue": find_missing_tissue,
            "landmarks": landmarks,
            "id": id,
            "request_id": request_id,
            "ttl": ttl,
        }
        return Operation(self._core, await self._core.start_register(fixed, moving, arguments, timeout, cancel))

    def navigate(
        self,
        fixed: Any = None,
        moving: Any = None,
        *,
        method: Method = "auto",
        field: Optional[str] = None,
        stride: Any = None,
        region: Any = None,
        latest: bool = False,
        cancel_running: Optional[bool] = None,
        deadline: Optional[float] = None,
        late: Optional[str] = None,
        rate: Optional[float] = None,
        resume: Optional[float] = None,
        id: str = "",
        idle_timeout: Optional[float] = None,
        max_pending: Optional[int] = None,
        coarse_field: bool = False,
        frame_masks: bool = False,
        frame_geometry: Any = None,
        frame_axes: Optional[str] = None,
        shared_memory: Optional[bool] = None,
        max_answers: int = 32,
        fixed_mask: Any = None,
        moving_mask: Any = None,
        fixed_weight: Any = None,
        moving_weight: Any = None,
        initial: Any = None,
        budget: Optional[float] = None,
        best_effort: Optional[bool] = None,
        error_limit_mm: Optional[float] = None,
        error_map: bool = False,
        error_at: Any = None,
        keep_deformation: Optional[bool] = None,
        find_missing_tissue: Optional[bool] = None,
        landmarks: Any = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
        **stage_options: Any,
    ) -> "Opening":
        """Opens a session: a stream of frames, each registered to the resident volume from the last good result.

        Args:
            fixed, moving: exactly one, the resident volume; each frame is the other image.
            method, masks, weights, initial, budget, stage options and so on: as of `register`.
            field: every answer brings its field, as "int16", "float16", "float32" (dense), "control" (compact, of ffd)
                or "velocity" (of log-demons). `Session.map_points` needs one, unless the last stage is rigid or affine.
            stride, region: every how many voxels, and which part, of a dense field.
            latest: a newer frame takes the place of one that waits, here and on the server; `send` then never waits.
            cancel_running: with latest: also of the one that runs.
            deadline: seconds after which a frame without an answer fails; late="deliver" answers it all the same,
                marked LATE.
            rate: frames a second that will come; the server then tells its load.
            resume: seconds for which the session waits on the server after its connection broke. The session is then
                taken up again by itself; frames under way are answered as lost.
            id: the session's wanted id.
            idle_timeout: a session without a frame for so long is closed; None: 15 minutes.
            max_pending: frames that the server reads ahead; None: 2.
            coarse_field: each answer also brings the field before the finest level (Answer.coarse).
            frame_masks: frames may have masks and weights of their own (`Session.set_masks`); the server takes memory
                for them at once.
            frame_geometry, frame_axes: the grid of frames that are sent as arrays, and their axes ("zyx"); the server
                takes memory for that grid at once.
            shared_memory: None: used where the server is on this host and offers it; True: an error where it is not;
                False: never.
            max_answers: answers that nobody takes are kept up to this number; then the oldest go
                (Session.dropped_answers).
            timeout: seconds for the whole session; None: no limit.

        Raises:
            Those of `register`; Busy with TOO_MANY_SESSIONS; SharedMemoryUnavailable with shared_memory=True.
        """
        arguments = {
            "method": method,
            "stage_options": stage_options,
            "field": field,
            "stride": stride,
            "region": region,
            "latest": latest,
            "cancel_running": cancel_running,
            "deadline": deadline,
            "late": late,
            "rate": rate,
            "resume": resume,
            "id": id,
            "idle_timeout": idle_timeout,
            "max_pending": max_pending,
            "coarse_field": coarse_field,
            "frame_masks": frame_masks,
            "frame_geometry": frame_geometry,
            "frame_axes": frame_axes,
            "shared_memory": shared_memory,
            "max_answers": max_answers,
            "fixed_mask": fixed_mask,
            "moving_mask": moving_mask,
            "fixed_weight": fixed_weight,
            "moving_weight": moving_weight,
            "initial": initial,
            "budget": budget,
            "best_effort": best_effort,
            "error_limit_mm": error_limit_mm,
            "error_map": error_map,
            "error_at": error_at,
            "keep_deformation": keep_deformation,
            "find_missing_tissue": find_missing_tissue,
            "landmarks": landmarks,
            "timeout": timeout,
        }
        return Opening(self._core.open_session(fixed, moving, arguments, cancel))

    # ---- transforms ----

    async def put_transform(
        self,
        source: Any,
        *,
        id: str = "",
        ttl: Optional[float] = None,
        beside: Any = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Transform":
        """Uploads a transform: a 4 x 4 matrix (fixed to moving, LPS mm) or a Field. With several servers, `beside` says
        on whose server (a volume)."""
        return Transform(self._core, await self._core.put_transform(source, id, ttl, beside, timeout, cancel))

    async def transforms(
        self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> List["Transform"]:
        """Every stored transform of the caller, in order of name."""
        return [Transform(self._core, each) for each in await self._core.list_states("transforms", timeout, cancel)]

    async def transform(
        self, name: str, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> "Transform":
        """A stored transform by its name "transforms/ID", with its report. Raises NotFound."""
        return Transform(self._core, await self._core.get(_named("transforms", name), timeout, cancel))

    async def map_points(
        self,
        transform: Any,
        points: Any,
        *,
        space: str = "LPS",
        inverse: bool = False,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Any:
        """Points through a stored transform, on the server: fixed to moving, or back with inverse=True.

        Args:
            points: (N, 3) or (3,), mm in `space`; any number.

        Returns:
            float64 of the same shape and space. A point whose inverse was not found is NaN NaN NaN.
        """
        return await self._core.map_through(transform, points, space, inverse, timeout, cancel)

    # ---- sparse matrices ----

    async def put_matrix(
        self,
        matrix: Any,
        *,
        id: str = "",
        ttl: Optional[float] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Matrix":
        """Uploads a scipy.sparse matrix of any format, where it stays resident. float32 stays so; everything else real
        travels as float64. Duplicates are summed."""
        return Matrix(self._core, await self._core.put_matrix(matrix, id, ttl, progress, timeout, cancel))

    async def put_matrix_values(
        self,
        pattern: Any,
        values: Any,
        *,
        id: str = "",
        ttl: Optional[float] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Matrix":
        """A new matrix with the rows, columns and entries of a resident one; only the values travel.

        Args:
            pattern: a Matrix handle, or a name "sparseMatrices/ID".
            values: one real number for each entry, in the order of `pattern.download().data`. float32 stays so;
                everything else travels as float64.
        """
        state = await self._core.put_matrix_values(pattern, values, id, ttl, progress, timeout, cancel)
        return Matrix(self._core, state)

    async def matrices(
        self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> List["Matrix"]:
        """Every resident matrix of the caller, in order of name."""
        return [Matrix(self._core, each) for each in await self._core.list_states("matrices", timeout, cancel)]

    async def multiply(
        self,
        a: Any,
        b: Any,
        *,
        precision: Optional[str] = None,
        semiring: Optional[str] = None,
        transpose_a: Optional[bool] = None,
        mask: Any = None,
        complement_mask: Optional[bool] = None,
        alpha: Optional[float] = None,
        addend: Any = None,
        beta: Optional[float] = None,
        reuse_plan: Optional[bool] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Any:
        """C = alpha op(A) B + beta D over a semiring and under a mask.

        Args:
            a, b, mask, addend: scipy.sparse matrices (uploaded for the product and deleted after it), Matrix handles,
                or names "sparseMatrices/ID".
            precision: "fp64" (the default for float64 matrices), "fp32", "tf32", "bf16", "fp16".
            semiring: "plus-times", "or-and", "min-plus".
            reuse_plan: take the plan of an earlier product of resident matrices with these very patterns
                (put_matrix_values), and leave this one's for later ones; not with a mask or an addend.

        Returns:
            scipy.sparse.csr_matrix.

        Raises:
            Busy or OutOfCapacity: the product does not fit; `numbers` has the estimate.
        """
        arguments = {
            "precision": precision,
            "semiring": semiring,
            "transpose_a": transpose_a,
            "mask": mask,
            "complement_mask": complement_mask,
            "alpha": alpha,
            "addend": addend,
            "beta": beta,
            "reuse_plan": reuse_plan,
        }
        product, _ = await self._core.multiply_matrices(a, b, arguments, None, progress, timeout, cancel)
        return product

    async def multiply_resident(
        self,
        a: Any,
        b: Any,
        *,
        id: str = "",
        precision: Optional[str] = None,
        semiring: Optional[str] = None,
        transpose_a: Optional[bool] = None,
        mask: Any = None,
        complement_mask: Optional[bool] = None,
        alpha: Optional[float] = None,
        addend: Any = None,
        beta: Optional[float] = None,
        reuse_plan: Optional[bool] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Matrix":
        """As `multiply`, but the product stays on the server, under `id` where one is given."""
        arguments = {
            "precision": precision,
            "semiring": semiring,
            "transpose_a": transpose_a,
            "mask": mask,
            "complement_mask": complement_mask,
            "alpha": alpha,
            "addend": addend,
            "beta": beta,
            "reuse_plan": reuse_plan,
        }
        product, _ = await self._core.multiply_matrices(a, b, arguments, id or True, progress, timeout, cancel)
        return Matrix(self._core, product)

    async def multiply_triple(
        self,
        a: Any,
        p: Any,
        *,
        r: Any = None,
        precision: Optional[str] = None,
        semiring: Optional[str] = None,
        transpose_a: Optional[bool] = None,
        mask: Any = None,
        complement_mask: Optional[bool] = None,
        alpha: Optional[float] = None,
        addend: Any = None,
        beta: Optional[float] = None,
        reuse_plan: Optional[bool] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Any:
        """C = alpha R op(A) P + beta D in one call; without `r` Galerkin's alpha P^T op(A) P + beta D.

        op(A) P is made first, and never leaves the server. Arguments as for `multiply`: the precision, the semiring and
        reuse_plan count for both products, `transpose_a` for A, the others for C.

        Returns:
            scipy.sparse.csr_matrix.
        """
        arguments = {
            "precision": precision,
            "semiring": semiring,
            "transpose_a": transpose_a,
            "mask": mask,
            "complement_mask": complement_mask,
            "alpha": alpha,
            "addend": addend,
            "beta": beta,
            "reuse_plan": reuse_plan,
        }
        product, _ = await self._core.multiply_matrices(
            a, p, arguments, None, progress, timeout, cancel, r, is_triple=True
        )
        return product

    async def multiply_triple_resident(
        self,
        a: Any,
        p: Any,
        *,
        r: Any = None,
        id: str = "",
        precision: Optional[str] = None,
        semiring: Optional[str] = None,
        transpose_a: Optional[bool] = None,
        mask: Any = None,
        complement_mask: Optional[bool] = None,
        alpha: Optional[float] = None,
        addend: Any = None,
        beta: Optional[float] = None,
        reuse_plan: Optional[bool] = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Matrix":
        """As `multiply_triple`, but the product stays on the server, under `id` where one is given."""
        arguments = {
            "precision": precision,
            "semiring": semiring,
            "transpose_a": transpose_a,
            "mask": mask,
            "complement_mask": complement_mask,
            "alpha": alpha,
            "addend": addend,
            "beta": beta,
            "reuse_plan": reuse_plan,
        }
        product, _ = await self._core.multiply_matrices(
            a, p, arguments, id or True, progress, timeout, cancel, r, is_triple=True
        )
        return Matrix(self._core, product)

    # ---- operations and archives ----

    async def operations(
        self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> List["Operation"]:
        """Work that goes on without its call, or has ended not long ago."""
        return [Operation(self._core, each) for each in await self._core.list_states("operations", timeout, cancel)]

    async def operation(
        self, name: str, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> "Operation":
        """By its name "operations/ID". Raises NotFound."""
        return Operation(self._core, await self._core.get(_named("operations", name), timeout, cancel))

    async def remotes(
        self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> List[v1.Remote]:
        """The archives (PACS) that series can be imported from."""
        response = await self._core.call("ListRemotes", v1.ListRemotesRequest(), timeout, cancel)
        return list(response.remotes)

    async def find_series(
        self, remote: str, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None, **keys: Any
    ) -> List[v1.SeriesMatch]:
        """Series of an archive. Keys are the fields of FindSeriesRequest: study_uid, patient_id, patient_name,
        accession_number, date_from, date_to, modality, with_patient, max_series. Raises ArchiveError, NotFound."""
        request = v1.FindSeriesRequest(remote=remote, **keys)
        response = await self._core.call("FindSeries", request, timeout, cancel)
        return list(response.series)

    async def import_series(
        self,
        remote: str,
        study_uid: str,
        series_uid: str,
        *,
        request_id: str = "",
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> "Operation":
        """Begins to bring a series of an archive as volumes; `Operation.wait_all` gives them."""
        from ._core import new_id

        request = v1.ImportSeriesRequest(
            remote=remote, study_uid=study_uid, series_uid=series_uid, request_id=request_id or new_id()
        )
        address = (await self._core.order())[0]
        response = await self._core.link_at(address).unary("ImportSeries", request, timeout, cancel)
        return Operation(self._core, OperationState(address, response.operation))


def _named(collection: str, name: str) -> str:
    return name if name.startswith(collection + "/") else f"{collection}/{name}"


class Volume:
    """A volume that is resident on the server."""

    def __init__(self, core: Calls, state: VolumeState) -> None:
        self._core = core
        self._state = state

    @property
    def name(self) -> str:
        """ "volumes/ID"."""
        return self._state.name

    @property
    def geometry(self) -> Geometry:
        """The grid of its voxels."""
        return self._state.geometry

    @property
    def proto(self) -> v1.Volume:
        """All that the server says of it."""
        return self._state.proto

    @property
    def address(self) -> str:
        """The server that it is on."""
        return self._state.address

    @property
    def image(self) -> Optional[Image]:
        """What it was uploaded from; None for a volume that this client did not upload."""
        return self._state.image

    async def download(
        self,
        *,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Image:
        """The voxels as float32."""
        return await self._core.download_volume(self._state, progress, timeout, cancel)

    async def delete(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> None:
        """Deletes it, on every server where this client has staged it. Raises NotFound."""
        await self._core.delete_state(self._state, timeout, cancel)

    def __repr__(self) -> str:
        return f"Volume({self.name}, {self.geometry!r})"

    def _repr_html_(self) -> str:
        return _display.rows_html(
            "Volume",
            [
                ("name", self.name),
                ("grid", repr(self.geometry)),
                ("range", f"{self.proto.minimum:g} to {self.proto.maximum:g}"),
            ],
        )


class Transform:
    """A transform that the server keeps: fixed to moving, LPS mm. Immutable there."""

    def __init__(self, core: Calls, state: TransformState) -> None:
        self._core = core
        self._state = state

    @property
    def name(self) -> str:
        """ "transforms/ID"."""
        return self._state.name

    @property
    def address(self) -> str:
        """The server that it is on."""
        return self._state.address

    @property
    def affine(self) -> Any:
        """4 x 4 float64, the affine part; None before `load` where the transform did not come with it."""
        return self._state.affine

    @property
    def report(self) -> Optional[Report]:
        """Of the registration that made it; None for a transform that a client brought, and before `load`."""
        return self._state.report

    async def load(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> v1.Transform:
        """All that the server says of it."""
        state = await self._core.load_transform(self._state, timeout, cancel)
        assert state.proto is not None
        return state.proto

    async def field(
        self,
        encoding: str = "float32",
        *,
        stride: Any = None,
        region: Any = None,
        like: Any = None,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Field:
        """Fetches the deformation, once for each encoding of the whole field.

        Args:
            encoding: "float32", "float16" or "int16": dense displacements T(p) - p; "control": the control grid of ffd;
                "velocity": of log-demons.
            stride: every how many voxels, one number or x, y, z. A stride of 4 is 64 times smaller; between its samples
                a field is linear, which docs/use/python.md measures.
            region: ((x, y, z) of the first voxel, (x, y, z) of the size).
            like: another grid than the fixed image's: a volume, an Image or a Geometry.

        Raises:
            PreconditionFailed: "control" or "velocity" of a transform that has none.
        """
        return await self._core.field_of(self._state, encoding, stride, region, like, progress, timeout, cancel)

    async def map_points(
        self, points: Any, *, space: str = "LPS", timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> Any:
        """(N, 3) points of the fixed image to points of the moving image, on the server; mm in `space`."""
        return await self._core.map_through(self._state, points, space, False, timeout, cancel)

    async def inverse_points(
        self, points: Any, *, space: str = "LPS", timeout: Optional[float] = None, cancel: Optional[Cancellation] = None
    ) -> Any:
        """The other way; a point whose inverse was not found is NaN NaN NaN."""
        return await self._core.map_through(self._state, points, space, True, timeout, cancel)

    async def warp(
        self,
        moving: Any = None,
        *,
        like: Any = None,
        inverse: bool = False,
        fill: float = 0.0,
        interpolation: str = "linear",
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Image:
        """Resamples a volume through the transform, on the server.

        Args:
            moving: the volume; None: the registration's moving volume (with inverse=True its fixed one).
            like: the grid of the result: a volume, an Image or a Geometry; None: the fixed volume's.
            inverse: resample through the inverse.
            fill: the value of a voxel without a source.
            interpolation: "linear", "nearest" (for masks) or "cubic".

        Returns:
            A float32 Image.
        """
        return await self._core.warp_volume(
            self._state, moving, like, inverse, fill, interpolation, progress, timeout, cancel
        )

    async def delete(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> None:
        """Deletes it on the server. Raises NotFound."""
        await self._core.delete_state(self._state, timeout, cancel)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class Result(Transform):
    """What `register` gives: the transform, and how good it is. Fields and images are fetched when they are asked
    for."""

    @property
    def report(self) -> Report:
        """What the registration did, and how good its result is."""
        assert self._state.report is not None
        return self._state.report

    @property
    def verdict(self) -> str:
        """ "OK", or "REVIEW": a person should look before the result is used."""
        return self.report.verdict

    @property
    def ok(self) -> bool:
        """Whether the verdict is OK."""
        return self.report.ok

    def __bool__(self) -> bool:
        raise TypeError("a result is neither true nor false: look at result.ok, or call result.raise_if_not_ok()")

    @property
    def reasons(self) -> Tuple[Reason, ...]:
        """Why the verdict says REVIEW; empty for OK."""
        return self.report.reasons

    @property
    def error(self) -> Optional[v1.ErrorEstimate]:
        """The prediction of the error; None where the images have too little structure to judge by."""
        return self.report.error

    @property
    def expected_error_mm(self) -> Optional[float]:
        """The median of the expected error over the region of interest, mm; None where it is unknown."""
        return self.report.expected_error_mm

    @property
    def error_map(self) -> Optional[ErrorMap]:
        """The predicted error block by block (`expected` and `bound`, Images in mm); None where it is unknown."""
        return self.report.error_map

    def raise_if_not_ok(self) -> None:
        """Raises ReviewNeeded, with the reasons, unless the verdict is OK."""
        if not self.ok:
            raise errors.ReviewNeeded(
                "; ".join(str(each) for each in self.reasons) or "the verdict is not OK", resource=self.name
            )

    @property
    def fixed(self) -> "Volume":
        """The fixed volume of the registration."""
        assert self._state.fixed is not None
        return Volume(self._core, self._state.fixed)

    @property
    def moving(self) -> "Volume":
        """The moving volume of the registration."""
        assert self._state.moving is not None
        return Volume(self._core, self._state.moving)

    async def warped(
        self,
        *,
        fill: float = 0.0,
        interpolation: str = "linear",
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Image:
        """The moving image on the fixed grid."""
        return await self.warp(fill=fill, interpolation=interpolation, timeout=timeout, cancel=cancel)

    async def plot(self, *, axis: str = "z", index: Optional[int] = None, figure: Any = None) -> Any:
        """Draws a montage with matplotlib: fixed, warped, a checkerboard of both, their difference, the displacement
        and the predicted error, in one plane, turned as radiologists expect it, with the letters of its sides.

        Args:
            axis: the plane's normal, "x", "y" or "z". index: the voxel along it; None: the middle.
            figure: a matplotlib figure to draw into; None: a new one.

        Returns:
            The figure.
        """
        fixed = self.fixed.image
        if fixed is None:
            fixed = await self.fixed.download()
        warped = await self.warped()
        field = await self.field("int16")
        return _display.plot_result(fixed, warped, field, self.report, axis, index, figure)

    def __repr__(self) -> str:
        return f"Result({self.name}, {self.report!r})"

    def _repr_html_(self) -> str:
        return _display.report_html(self.name, self.report)


class Opening:
    """A session that is being opened: `async with server.navigate(...) as session`, or `session = await ...`."""

    def __init__(self, opening: Coroutine[Any, Any, SessionCore]) -> None:
        self._opening = opening
        self._session: Optional["Session"] = None

    async def _open(self) -> "Session":
        return Session(await self._opening)

    def __await__(self) -> Generator[Any, None, "Session"]:
        return self._open().__await__()

    async def __aenter__(self) -> "Session":
        self._session = await self._open()
        return self._session

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


class Session:
    """A stream of frames and their answers. `Server.navigate` opens it; a `with` block closes it.

    One task or thread may send while another takes answers; `map_points` may be called from any thread at any time.
    Answers are read as they come, whoever takes them.
    """

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._core.close(30.0, abandon=kind is not None)

    @property
    def name(self) -> str:
        """ "sessions/ID"."""
        return self._core.name

    @property
    def address(self) -> str:
        """The server that carries it now."""
        return self._core.address

    async def send(
        self,
        frame: Any,
        *,
        number: Optional[int] = None,
        acquired: Optional[float] = None,
        deadline: Optional[float] = None,
    ) -> int:
        """Sends a frame. Without `latest` this waits until the connection takes it; with it never.

        Args:
            frame: an Image; an array of the frame_geometry and frame_axes that `navigate` was given; or what `Image.of`
                takes.
            number: must grow from frame to frame; None: the one after the last.
            acquired: when the frame was acquired, seconds since 1970 (time.time()); ages count from it.
            deadline: seconds after which the answer is not wanted any more; None: the session's.

        Returns:
            The frame's number.

        Raises:
            GeometryError: an array without a geometry, or of another shape.
            SessionEnded: the session is over; the error that ended it where there was one.
        """
        return await self._core.send(frame, number, acquired, deadline)

    def set_landmarks(self, landmarks: Any) -> None:
        """Landmarks for the frames that are sent from now on, as of `Server.navigate`; an empty list: none; None: those
        that the session was opened with."""
        self._core.set_landmarks(landmarks)

    def set_masks(self, mask: Any = None, weight: Any = None) -> None:
        """A mask and weights for the frames that are sent from now on, in a session with `frame_masks=True`: volumes on
        the server, by handle or name "volumes/ID", on the frames' grid. None: the frames have the mask (the weights)
        that the session was opened with. After a move to another server both have to be set anew."""
        self._core.set_masks(mask, weight)

    async def receive(self, *, timeout: Optional[float] = None) -> Optional[Answer]:
        """The next answer, in order; None when the session has ended well. Raises the error that ended it, and
        DeadlineExceeded after `timeout` seconds."""
        return await self._core.next_answer(timeout)

    def __aiter__(self) -> "Session":
        return self

    async def __anext__(self) -> Answer:
        answer = await self._core.next_answer(None)
        if answer is None:
            raise StopAsyncIteration
        return answer

    def on_answer(self, callback: Callable[[Answer], Any]) -> Callable[[Answer], Any]:
        """Calls `callback(answer)` for every answer, on the thread (or loop) that reads them, in order; one that a
        newer frame has overtaken before it was sent is told of by the thread that sends. An exception ends the session.
        Usable as a decorator."""
        self._core.callbacks.append(callback)
        return callback

    def map_points(
        self, points: Any, *, space: str = "LPS", inverse: bool = False, max_age: Optional[float] = None
    ) -> MappedPoints:
        """Points through the newest field, here and now, without a call. Thread-safe.

        Args:
            points: (N, 3) or (3,) of the fixed image, mm in `space`; with inverse=True of the moving one.
            max_age: seconds; an older field raises StaleField.

        Returns:
            MappedPoints with `points`, `age` (seconds), `number`, `verdict` and `reasons`.

        Raises:
            StaleField: no frame was registered yet, the field is older than max_age, or the session has no fields.
        """
        return self._core.map_points(points, space, inverse, max_age)

    @property
    def newest(self) -> Optional[Answer]:
        """The newest good answer, with its field; None before the first. Any thread may read it."""
        return self._core.newest

    @property
    def shares_memory(self) -> bool:
        """Whether frames and fields go through shared memory; `shared_memory_error` says why not."""
        return self._core.frames_shared + self._core.fields_shared > 0 or self._core.shares_memory

    @property
    def shared_memory_error(self) -> Optional[errors.IntrawarpError]:
        """Why frames do not go through shared memory; None where they do, or where it was not asked for."""
        return self._core.shared_memory_error

    @property
    def transfers(self) -> Dict[str, int]:
        """How frames and fields have travelled."""
        return {
            "frames_shared": self._core.frames_shared,
            "frames_in_chunks": self._core.frames_in_chunks,
            "fields_shared": self._core.fields_shared,
            "fields_in_chunks": self._core.fields_in_chunks,
        }

    @property
    def dropped_answers(self) -> int:
        """Answers that nobody took in time."""
        return self._core.dropped_answers

    @property
    def recoveries(self) -> int:
        """How often the session went on after its stream had broken."""
        return self._core.recoveries

    async def status(self) -> v1.Session:
        """The session as the server sees it: state, load, statistics."""
        return await self._core.session()

    @property
    def statistics(self) -> Optional[v1.SessionStatistics]:
        """At the session's end, once it is closed: frames_ok, frames_missed, frames_superseded, latency_p99_ms, ..."""
        return self._core.closed.statistics if self._core.closed is not None else None

    async def done(self) -> None:
        """Says that no frame follows; answers that are owed still come, and then iteration ends."""
        await self._core.done_sending()

    async def close(self, *, timeout: Optional[float] = 30.0) -> None:
        """Ends the session: says that no frame follows and waits for what is owed, `timeout` seconds at most."""
        await self._core.close(timeout)

    def cancel(self) -> None:
        """Ends the session at once, from any thread."""
        self._core.cancel()

    def __repr__(self) -> str:
        return f"Session({self.name} on {self.address})"


class Matrix:
    """A sparse matrix that is resident on the server."""

    def __init__(self, core: Calls, state: MatrixState) -> None:
        self._core = core
        self._state = state

    @property
    def name(self) -> str:
        """ "sparseMatrices/ID"."""
        return self._state.name

    @property
    def shape(self) -> Tuple[int, int]:
        """Rows and columns."""
        return self._state.proto.shape.rows, self._state.proto.shape.columns

    @property
    def nnz(self) -> int:
        """The number of its entries."""
        return self._state.proto.shape.entries

    @property
    def proto(self) -> v1.SparseMatrix:
        """All that the server says of it."""
        return self._state.proto

    async def download(
        self,
        *,
        progress: ProgressArgument = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancellation] = None,
    ) -> Any:
        """scipy.sparse.csr_matrix."""
        return await self._core.download_matrix(self._state, progress, timeout, cancel)

    async def delete(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> None:
        """Deletes it on the server. Raises NotFound."""
        await self._core.delete_state(self._state, timeout, cancel)

    def __repr__(self) -> str:
        return f"Matrix({self.name}, {self.shape[0]} x {self.shape[1]}, {self.nnz} entries)"


class Operation:
    """Work on the server that goes on without its call."""

    def __init__(self, core: Calls, state: OperationState) -> None:
        self._core = core
        self._state = state

    @property
    def name(self) -> str:
        """ "operations/ID"."""
        return self._state.proto.name

    @property
    def proto(self) -> v1.Operation:
        """As it was when last heard of."""
        return self._state.proto

    @property
    def state(self) -> str:
        """ "QUEUED", "RUNNING", "DONE" or "FAILED", as last heard of."""
        return enum_name(v1.OperationState, self._state.proto.state, "OPERATION_STATE_")

    async def refresh(self, *, timeout: Optional[float] = None) -> str:
        """Asks for the state."""
        await self._core.refresh_operation(self._state, False, timeout)
        return self.state

    async def cancel(self, *, timeout: Optional[float] = None) -> str:
        """Makes the work end soon; the state then."""
        await self._core.refresh_operation(self._state, True, timeout)
        return self.state

    async def wait_all(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> List[Any]:
        """Waits for the end, over new connections where one breaks; handles of everything that was made.

        Raises:
            The operation's error; DeadlineExceeded when it has not ended after `timeout` seconds.
        """
        return [_handle(self._core, each) for each in await self._core.finish_operation(self._state, timeout, cancel)]

    async def wait(self, *, timeout: Optional[float] = None, cancel: Optional[Cancellation] = None) -> Any:
        """As `wait_all`; the first that was made: a Result, a Matrix or a Volume."""
        made = await self.wait_all(timeout=timeout, cancel=cancel)
        if not made:
            raise errors.InternalError("the operation has made nothing", resource=self.name)
        return made[0]

    def __repr__(self) -> str:
        return f"Operation({self.name}, {self.state})"


def _handle(core: Calls, state: Any) -> Any:
    if isinstance(state, TransformState):
        return Result(core, state) if state.report is not None else Transform(core, state)
    return Volume(core, state) if isinstance(state, VolumeState) else Matrix(core, state)
