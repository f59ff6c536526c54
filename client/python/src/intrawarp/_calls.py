# SPDX-License-Identifier: Apache-2.0
"""Calls: what the methods of Server, Volume, Transform and Session do, written once for both clients. Internal.

States are plain objects that the public handles of either client wrap.
"""
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from . import errors, v1
from ._core import Core, digest_of
from ._geometry import Geometry, space_signs
from ._io import Cancellation
from ._link import Link
from ._options import duration, field_request, interpolation_of, make_stages, refuse, registration_options
from ._session import SessionCore, SessionSettings
from ._sparse import decode, encode, encode_values
from .field import Field, affine_of, points_of
from .image import Image
from .progress import ProgressArgument, Reporter
from .report import Report

_OVERLOAD = {False: v1.OVERLOAD_POLICY_KEEP_ALL, True: v1.OVERLOAD_POLICY_LATEST_WINS}
# The volumes that say how much voxels count, as arguments and as options.
_COUNTING = ("fixed_mask", "moving_mask", "fixed_weight", "moving_weight")
_LATE = {"drop": v1.LATE_FRAMES_DROP, "deliver": v1.LATE_FRAMES_DELIVER}
_SEMIRINGS = {"plus-times": v1.SEMIRING_PLUS_TIMES, "or-and": v1.SEMIRING_OR_AND, "min-plus": v1.SEMIRING_MIN_PLUS}
_PRECISIONS = {
    "fp16": v1.PRECISION_FP16,
    "bf16": v1.PRECISION_BF16,
    "tf32": v1.PRECISION_TF32,
    "fp32": v1.PRECISION_FP32,
    "fp64": v1.PRECISION_FP64,
}


class VolumeState:
    """A resident volume; `image` is what it was uploaded from, kept where several servers may need it again."""

    def __init__(self, address: str, proto: v1.Volume, image: Optional[Image], digest: bytes = b"") -> None:
        self.places: Dict[str, str] = {address: proto.name}
        self.address = address
        self.proto = proto
        self.image = image
        self.digest = digest or proto.digest

    @property
    def key(self) -> str:
        return self.digest.hex()

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def geometry(self) -> Geometry:
        return Geometry.from_proto(self.proto.geometry)


class TransformState:
    def __init__(
        self,
        address: str,
        name: str,
        report: Optional[Report],
        fixed: Optional[VolumeState] = None,
        moving: Optional[VolumeState] = None,
    ) -> None:
        self.address = address
        self.name = name
        self.report = report
        self.fixed = fixed
        self.moving = moving
        self.field: Optional[Field] = None
        self.proto: Optional[v1.Transform] = None

    @property
    def affine(self) -> Any:
        if self.report is not None:
            return self.report.affine
        return affine_of(self.proto.affine) if self.proto is not None else None

    @property
    def domain(self) -> Optional[Geometry]:
        if self.proto is not None:
            return Geometry.from_proto(self.proto.domain) if self.proto.HasField("domain") else None
        return self.fixed.geometry if self.fixed is not None else None


class MatrixState:
    def __init__(self, address: str, proto: v1.SparseMatrix) -> None:
        self.address = address
        self.proto = proto

    @property
    def name(self) -> str:
        return self.proto.name


class OperationState:
    def __init__(
        self,
        address: str,
        proto: v1.Operation,
        fixed: Optional[VolumeState] = None,
        moving: Optional[VolumeState] = None,
    ) -> None:
        self.address = address
        self.proto = proto
        self.fixed = fixed
        self.moving = moving


def choice(table: Mapping[Any, int], value: Any, field: str) -> int:
    key = str(value).lower().replace("_", "-") if isinstance(value, str) else value
    if key not in table:
        raise refuse(field, f"{value!r} is none of {', '.join(str(each) for each in table)}")
    return table[key]


class Calls(Core):
    # ---- volumes ----

    async def put(
        self,
        source: Any,
        how: Dict[str, Any],
        id: str,
        pinned: bool,
        ttl: Optional[float],
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> VolumeState:
        image = await self.image_of(source, how)
        digest = await self.io.blocking(digest_of, image.buffer())
        reporter = Reporter("upload", progress)

        async def work(link: Link) -> VolumeState:
            proto = await self.put_volume(link, image, id, pinned, ttl, reporter, timeout, cancellation, digest)
            return VolumeState(link.address, proto, image, digest)

        state: VolumeState = await self.run(work, key=digest.hex(), cancellation=cancellation)
        return state

    async def image_of(self, source: Any, how: Dict[str, Any]) -> Image:
        if isinstance(source, (str, os.PathLike)):
            return await self.io.blocking(lambda: Image.of(source, **how))
        return Image.of(source, **how)

    async def volume_of(self, source: Any, cancellation: Optional[Cancellation] = None) -> VolumeState:
        """The state of a handle, of a name "volumes/ID", or of anything that can be uploaded."""
        state = getattr(source, "_state", source)
        if isinstance(state, VolumeState):
            return state
        if isinstance(source, str) and source.startswith("volumes/"):
            address, proto = await self.find(source, None, cancellation)
            return VolumeState(address, proto, None)
        return await self.put(source, {}, "", False, None, None, None, cancellation)

    async def name_at(
        self,
        link: Link,
        state: Optional[VolumeState],
        cancellation: Optional[Cancellation] = None,
        *,
        again: bool = False,
    ) -> str:
        """The volume's name on a server, where it is staged if it is not there; "" for None. With `again` it is staged
        also where it was: a server that was started anew has forgotten it, and one that has it sends nothing again."""
        if state is None:
            return ""
        if link.address in state.places and not (again and state.image is not None):
            return state.places[link.address]
        if state.image is None:
            raise errors.NotFound(
                f"{state.name} lies on {state.address} alone, and this client does not have its voxels",
                resource=state.name,
            )
        proto = await self.put_volume(
            link, state.image, "", False, None, Reporter("upload", None), None, cancellation, state.digest
        )
        state.places[link.address] = proto.name
        return proto.name

    async def download_volume(
        self,
        state: VolumeState,
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Image:
        return await self.get_volume(
            self.link_at(state.address), state.name, Reporter("download", progress), timeout, cancellation
        )

    async def delete_state(self, state: Any, timeout: Optional[float], cancellation: Optional[Cancellation]) -> None:
        if isinstance(state, VolumeState):
            for address, name in list(state.places.items()):
                await self.delete(self.link_at(address), name, timeout, cancellation)
            return
        name = state.name if hasattr(state, "name") else state
        if isinstance(name, str) and not hasattr(state, "address"):
            address, _ = await self.find(name, timeout, cancellation)
        else:
            address = state.address
        await self.delete(self.link_at(address), name, timeout, cancellation)

    async def get(self, name: str, timeout: Optional[float], cancellation: Optional[Cancellation]) -> Any:
        """The state of whatever a name names."""
        address, proto = await self.find(name, timeout, cancellation)
        kind = name.partition("/")[0]
        if kind == "volumes":
            return VolumeState(address, proto, None)
        if kind == "transforms":
            return transform_state(address, proto)
        if kind == "sparseMatrices":
            return MatrixState(address, proto)
        if kind == "operations":
            return OperationState(address, proto)
        raise refuse("name", f"'{name}' is none of volumes/ID, transforms/ID, sparseMatrices/ID, operations/ID")

    async def list_states(self, kind: str, timeout: Optional[float], cancellation: Optional[Cancellation]) -> List[Any]:
        if kind == "volumes":
            entries = await self.pages("ListVolumes", v1.ListVolumesRequest(), "volumes", timeout, cancellation)
            return [VolumeState(address, proto, None) for address, proto in entries]
        if kind == "transforms":
            entries = await self.pages(
                "ListTransforms", v1.ListTransformsRequest(), "transforms", timeout, cancellation
            )
            return [transform_state(address, proto) for address, proto in entries]
        if kind == "matrices":
            entries = await self.pages(
                "ListSparseMatrices", v1.ListSparseMatricesRequest(), "sparse_matrices", timeout, cancellation
            )
            return [MatrixState(address, proto) for address, proto in entries]
        entries = await self.pages("ListOperations", v1.ListOperationsRequest(), "operations", timeout, cancellation)
        return [OperationState(address, proto) for address, proto in entries]

    # ---- registration ----

    @staticmethod
    def _register_request(arguments: Dict[str, Any]) -> v1.RegisterRequest:
        """All but the names of volumes, which differ from server to server."""
        request = v1.RegisterRequest(
            options=options_of(arguments, arguments["stages"], arguments["initial"]),
            transform_id=arguments["id"],
            request_id=arguments["request_id"],
        )
        if arguments["ttl"] is not None:
            request.ttl.CopyFrom(duration(arguments["ttl"], "ttl"))
        if arguments.get("field"):
            request.field.CopyFrom(field_request(arguments["field"]))
        return request

    async def _placed(
        self,
        link: Link,
        request: v1.RegisterRequest,
        volumes: Tuple[Optional[VolumeState], ...],
        cancellation: Optional[Cancellation],
        again: bool = False,
    ) -> v1.RegisterRequest:
        """The request with the names that the images, masks and weights have on a server."""
        names = [await self.name_at(link, each, cancellation, again=again) for each in volumes]
        placed = v1.RegisterRequest()
        placed.CopyFrom(request)
        placed.fixed, placed.moving = names[:2]
        for key, name in zip(_COUNTING, names[2:]):
            setattr(placed.options, key, name)
        return placed

    async def _sources(
        self, fixed: Any, moving: Any, arguments: Dict[str, Any], cancellation: Optional[Cancellation]
    ) -> Any:
        counting = []
        states = [await self.volume_of(each, cancellation) for each in (fixed, moving)]
        for key in _COUNTING:
            given = arguments.pop(key)
            counting.append(None if given is None else await self.volume_of(given, cancellation))
        initial = getattr(arguments["initial"], "_state", arguments["initial"])
        if isinstance(initial, TransformState):
            arguments["initial"] = initial.name
        arguments["stages"] = make_stages(arguments.pop("method"), arguments.pop("stage_options"))
        return states[0], states[1], tuple(counting)

    async def register_images(
        self,
        fixed: Any,
        moving: Any,
        arguments: Dict[str, Any],
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> TransformState:
        fixed_state, moving_state, counting = await self._sources(fixed, moving, arguments, cancellation)
        request = self._register_request(arguments)
        reporter = Reporter("register", progress)

        async def work(link: Link, again: bool = False) -> TransformState:
            placed = await self._placed(link, request, (fixed_state, moving_state, *counting), cancellation, again)
            try:
                result, field = await self.register(link, placed, reporter, timeout, cancellation)
            except errors.NotFound as error:
                # One of several servers was started anew since the volume was staged there.
                if again or not self.has_several or not error.resource.startswith("volumes/"):
                    raise
                return await work(link, again=True)
            state = TransformState(link.address, result.transform, Report(result.report), fixed_state, moving_state)
            if field is not None:
                state.field = Field(
                    field.raw,
                    field.geometry,
                    field.encoding,
                    scale=field.scale,
                    max_error_mm=field.max_error_mm,
                    affine=field.affine if field.affine is not None else state.affine,
                    domain=field.domain or fixed_state.geometry,
                )
            return state

        state: TransformState = await self.run(
            work, key=fixed_state.key, first=fixed_state.address, cancellation=cancellation
        )
        return state

    async def start_register(
        self,
        fixed: Any,
        moving: Any,
        arguments: Dict[str, Any],
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> OperationState:
        fixed_state, moving_state, counting = await self._sources(fixed, moving, arguments, cancellation)
        request = self._register_request(arguments)

        async def work(link: Link) -> OperationState:
            placed = await self._placed(link, request, (fixed_state, moving_state, *counting), cancellation)
            operation = await self.start(link, "Register", placed, timeout, cancellation)
            return OperationState(link.address, operation, fixed_state, moving_state)

        state: OperationState = await self.run(
            work, key=fixed_state.key, first=fixed_state.address, cancellation=cancellation
        )
        return state

    async def finish_operation(
        self, state: OperationState, timeout: Optional[float], cancellation: Optional[Cancellation]
    ) -> List[Any]:
        """Waits; the states of what was made. Raises the operation's error."""
        link = self.link_at(state.address)
        state.proto = await self.wait_operation(link, state.proto.name, timeout, cancellation)
        if state.proto.state == v1.OPERATION_STATE_FAILED:
            raise errors.from_status(state.proto.error, address=state.address)
        made: List[Any] = []
        for name in state.proto.results:
            _, proto = await self._find_at(link, name, cancellation)
            self.remember(link.address, name)
            if name.startswith("transforms/"):
                transform = transform_state(link.address, proto)
                transform.fixed, transform.moving = state.fixed, state.moving
                made.append(transform)
            elif name.startswith("volumes/"):
                made.append(VolumeState(link.address, proto, None))
            else:
                made.append(MatrixState(link.address, proto))
        return made

    async def _find_at(self, link: Link, name: str, cancellation: Optional[Cancellation]) -> Tuple[str, Any]:
        if name.startswith("transforms/"):
            found = await link.unary("GetTransform", v1.GetTransformRequest(name=name), None, cancellation)
            return link.address, found.transform
        if name.startswith("volumes/"):
            found = await link.unary("GetVolume", v1.GetVolumeRequest(name=name), None, cancellation)
            return link.address, found.volume
        found = await link.unary("GetSparseMatrix", v1.GetSparseMatrixRequest(name=name), None, cancellation)
        return link.address, found.sparse_matrix

    async def refresh_operation(self, state: OperationState, cancel: bool, timeout: Optional[float]) -> None:
        link = self.link_at(state.address)
        name = state.proto.name
        if cancel:
            response = await link.unary("CancelOperation", v1.CancelOperationRequest(name=name), timeout)
        else:
            response = await link.unary("GetOperation", v1.GetOperationRequest(name=name), timeout)
        state.proto = response.operation

    # ---- transforms ----

    async def load_transform(
        self, state: TransformState, timeout: Optional[float] = None, cancellation: Optional[Cancellation] = None
    ) -> TransformState:
        """Asks for what is not known of the transform: its kind, domain and report."""
        if state.proto is None:
            response = await self.link_at(state.address).unary(
                "GetTransform", v1.GetTransformRequest(name=state.name), timeout, cancellation
            )
            state.proto = response.transform
            if state.report is None and state.proto.HasField("report"):
                state.report = Report(state.proto.report)
        return state

    async def transform_of(self, source: Any, cancellation: Optional[Cancellation] = None) -> TransformState:
        state = getattr(source, "_state", source)
        if isinstance(state, TransformState):
            return state
        if isinstance(source, str):
            address, proto = await self.find(source, None, cancellation)
            return transform_state(address, proto)
        raise refuse("transform", "must be a result, a transform, or its name \"transforms/ID\"")

    async def field_of(
        self,
        source: Any,
        encoding: str,
        stride: Any,
        region: Any,
        like: Any,
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Field:
        state = await self.transform_of(source, cancellation)
        whole = stride is None and region is None and like is None
        if whole and state.field is not None and state.field.encoding == encoding:
            return state.field
        if state.fixed is None or state.report is None:
            await self.load_transform(state, timeout, cancellation)
        request = v1.DownloadRequest(name=state.name, field=field_request(encoding, stride, region))
        domain = state.domain
        if like is not None:
            grid = await self.grid_of(like, cancellation)
            request.geometry.CopyFrom(grid.to_proto())
            domain = grid
        affine = None if encoding in ("control", "velocity") else state.affine
        field = await self.get_field(
            self.link_at(state.address),
            request,
            Reporter("download", progress),
            timeout,
            cancellation,
            affine,
            None if region is not None else domain,
        )
        if whole:
            state.field = field
        return field

    async def grid_of(self, like: Any, cancellation: Optional[Cancellation] = None) -> Geometry:
        if isinstance(like, Geometry):
            return like
        if isinstance(like, (Image, Field)):
            return like.geometry
        state = getattr(like, "_state", like)
        if isinstance(state, VolumeState):
            return state.geometry
        if isinstance(like, str) and like.startswith("volumes/"):
            return (await self.volume_of(like, cancellation)).geometry
        return Image.of(like).geometry

    async def warp_volume(
        self,
        source: Any,
        moving: Any,
        like: Any,
        inverse: bool,
        fill: float,
        interpolation: str,
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Image:
        state = await self.transform_of(source, cancellation)
        default_moving, default_like = (state.fixed, state.moving) if inverse else (state.moving, state.fixed)
        link = self.link_at(state.address)
        if moving is None and default_moving is None:
            raise refuse("moving", "this transform does not come from a registration of this client: give the volume")
        volume = default_moving if moving is None else await self.volume_of(moving, cancellation)
        request = v1.WarpVolumeRequest(
            transform=state.name,
            moving=await self.name_at(link, volume, cancellation),
            inverse=inverse,
            fill=fill,
            interpolation=interpolation_of(interpolation),
        )
        grid = None if like is None else await self.grid_of(like, cancellation)
        if grid is None and default_like is not None:
            grid = default_like.geometry
        if grid is None:
            await self.load_transform(state, timeout, cancellation)
            grid = state.domain
        if grid is None:
            raise refuse("like", "this transform has no domain: give a grid (a volume, an Image or a Geometry)")
        request.like_geometry.CopyFrom(grid.to_proto())
        return await self.warp(link, request, Reporter("download", progress), timeout, cancellation)

    async def map_through(
        self,
        source: Any,
        points: Any,
        space: str,
        inverse: bool,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Any:
        flat, shape = points_of(points)
        signs = space_signs(space)
        state = await self.transform_of(source, cancellation)
        mapped = await self.map_points(
            self.link_at(state.address), state.name, flat * signs, inverse, timeout, cancellation
        )
        return (mapped * signs).reshape(shape)

    async def put_transform(
        self,
        source: Any,
        id: str,
        ttl: Optional[float],
        first: Any,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> TransformState:
        """Of a 4 x 4 matrix (fixed to moving, LPS mm) or a Field."""
        header = v1.UploadHeader(id=id)
        view = memoryview(b"")
        if isinstance(source, Field):
            dense = source if source.encoding in ("float32", "control", "velocity") else source.displacement()
            view = memoryview(np.ascontiguousarray(dense.raw, dtype="<f4").data).cast("B")
            field = header.transform.field
            field.geometry.CopyFrom(dense.geometry.to_proto())
            field.encoding = {
                "float32": v1.FIELD_ENCODING_FLOAT32,
                "control": v1.FIELD_ENCODING_CONTROL_POINTS,
                "velocity": v1.FIELD_ENCODING_VELOCITY,
            }[dense.encoding]
            field.total_bytes = len(view)
            if not dense.is_dense:
                field.affine.values.extend((np.eye(4) if dense.affine is None else dense.affine).reshape(-1).tolist())
            if dense.encoding == "control" and dense.domain is not None:
                field.domain.CopyFrom(dense.domain.to_proto())
        else:
            from ._options import affine_message

            header.transform.affine.CopyFrom(affine_message(source, "transform"))
        if ttl is not None:
            header.ttl.CopyFrom(duration(ttl, "ttl"))
        place = getattr(getattr(first, "_state", first), "address", "")

        async def work(link: Link) -> TransformState:
            answer = await self.put_object(link, header, view, Reporter("upload", None), timeout, cancellation)
            return transform_state(link.address, answer.transform)

        state: TransformState = await self.run(work, first=place, cancellation=cancellation)
        return state

    # ---- matrices ----

    async def put_matrix(
        self,
        matrix: Any,
        id: str,
        ttl: Optional[float],
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        first: str = "",
    ) -> MatrixState:
        shape, view = await self.io.blocking(encode, matrix)
        header = v1.UploadHeader(id=id)
        header.sparse_matrix.shape.CopyFrom(shape)
        if ttl is not None:
            header.ttl.CopyFrom(duration(ttl, "ttl"))
        reporter = Reporter("upload", progress)

        async def work(link: Link) -> MatrixState:
            answer = await self.put_object(link, header, view, reporter, timeout, cancellation)
            return MatrixState(link.address, answer.sparse_matrix)

        state: MatrixState = await self.run(work, first=first, cancellation=cancellation)
        return state

    async def put_matrix_values(
        self,
        pattern: Any,
        values: Any,
        id: str,
        ttl: Optional[float],
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> MatrixState:
        """A new matrix with the entries of `pattern`, a handle or a name, on its server."""
        if not isinstance(getattr(pattern, "_state", pattern), (MatrixState, str)):
            raise refuse("pattern", "must be a Matrix or a name 'sparseMatrices/ID'")
        first = await self._matrix_of(pattern, "", [], cancellation)
        value_type, view = await self.io.blocking(encode_values, values, first.proto.shape.entries)
        header = v1.UploadHeader(id=id)
        header.sparse_matrix_values.pattern = first.name
        header.sparse_matrix_values.value_type = value_type
        if ttl is not None:
            header.ttl.CopyFrom(duration(ttl, "ttl"))
        link = self.link_at(first.address)
        answer = await self.put_object(link, header, view, Reporter("upload", progress), timeout, cancellation)
        return MatrixState(link.address, answer.sparse_matrix)

    async def _matrix_of(
        self, source: Any, first: str, temporary: List[MatrixState], cancellation: Optional[Cancellation]
    ) -> MatrixState:
        state = getattr(source, "_state", source)
        if isinstance(state, MatrixState):
            return state
        if isinstance(source, str):
            address, proto = await self.find(source, None, cancellation)
            return MatrixState(address, proto)
        before = set(self._made)
        made = await self.put_matrix(source, "", None, None, None, cancellation, first)
        if (made.address, made.name) not in before:
            temporary.append(made)
        return made

    async def multiply_matrices(
        self,
        a: Any,
        b: Any,
        arguments: Dict[str, Any],
        keep: Any,
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        r: Any = None,
        is_triple: bool = False,
    ) -> Tuple[Any, v1.MultiplyReport]:
        """A scipy matrix, or the MatrixState of a product that is kept; and the report. Matrices that were uploaded for
        the product alone are deleted. `b` is P of a triple product, which has R or, without it, P transposed."""
        temporary: List[MatrixState] = []
        try:
            first = await self._matrix_of(a, "", temporary, cancellation)
            second = first if b is a else await self._matrix_of(b, first.address, temporary, cancellation)
            options = v1.MultiplyOptions()
            semiring, precision = arguments.get("semiring"), arguments.get("precision")
            if semiring is not None:
                options.semiring = choice(_SEMIRINGS, semiring, "semiring")
            if precision is not None:
                options.precision = choice(_PRECISIONS, precision, "precision")
            elif v1.VALUE_TYPE_FLOAT64 in (first.proto.shape.value_type, second.proto.shape.value_type):
                options.precision = v1.PRECISION_FP64
            for name in ("transpose_a", "complement_mask", "alpha", "beta", "reuse_plan"):
                if arguments.get(name) is not None:
                    setattr(options, name, arguments[name])
            for name in ("mask", "addend"):
                if arguments.get(name) is not None:
                    given = await self._matrix_of(arguments[name], first.address, temporary, cancellation)
                    setattr(options, name, given.name)
            request: Any = v1.MultiplyRequest(a=first.name, b=second.name, options=options)
            if is_triple:
                request = v1.MultiplyTripleRequest(a=first.name, p=second.name, options=options)
                if r is not None:
                    request.r = (await self._matrix_of(r, first.address, temporary, cancellation)).name
            if keep:
                request.keep.id = keep if isinstance(keep, str) else ""
                request.keep.SetInParent()
            link = self.link_at(first.address)
            result, header, data = await self.multiply(
                link, request, Reporter("multiply", progress), timeout, cancellation
            )
            if header is None:
                return MatrixState(link.address, result.sparse_matrix), result.report
            return decode(header.shape, data), result.report
        finally:
            for state in temporary:
                try:
                    await self.delete(self.link_at(state.address), state.name)
                except errors.IntrawarpError:
                    pass

    async def download_matrix(
        self,
        state: MatrixState,
        progress: ProgressArgument,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Any:
        header, data = await self.get_bytes(
            self.link_at(state.address), state.name, Reporter("download", progress), timeout, cancellation
        )
        return decode(header.sparse_matrix.shape, data)

    # ---- sessions ----

    async def open_session(
        self, fixed: Any, moving: Any, arguments: Dict[str, Any], cancellation: Optional[Cancellation]
    ) -> SessionCore:
        if (fixed is None) == (moving is None):
            raise refuse("fixed", "give fixed or moving: the resident image; each frame is the other one")
        resident = await self.volume_of(fixed if fixed is not None else moving, cancellation)
        counting = [
            None if arguments[key] is None else await self.volume_of(arguments[key], cancellation)
            for key in _COUNTING
        ]
        initial = getattr(arguments["initial"], "_state", arguments["initial"])
        initial = initial.name if isinstance(initial, TransformState) else initial
        stages = make_stages(arguments["method"], arguments["stage_options"])
        config = session_config(arguments)
        config.options.CopyFrom(options_of(arguments, stages, initial))
        frame_geometry = arguments["frame_geometry"]
        if frame_geometry is not None:
            frame_geometry = await self.grid_of(frame_geometry, cancellation)
            config.frame_geometry.CopyFrom(frame_geometry.to_proto())

        async def stage(link: Link, again: bool) -> v1.NavigateConfig:
            made = v1.NavigateConfig()
            made.CopyFrom(config)
            names = [await self.name_at(link, each, cancellation, again=again) for each in (resident, *counting)]
            if fixed is not None:
                made.fixed = names[0]
            else:
                made.moving = names[0]
            for key, name in zip(_COUNTING, names[1:]):
                setattr(made.options, key, name)
            return made

        last = stages[-1].WhichOneof("method") if stages else ""
        settings = SessionSettings(
            latest=bool(arguments["latest"]),
            recovers=self.has_several
            or config.HasField("resume_window")
            and (config.resume_window.seconds > 0 or config.resume_window.nanos > 0)
            or bool(config.session_id),
            shared_memory=arguments["shared_memory"],
            max_answers=arguments["max_answers"],
            frame_geometry=frame_geometry or (resident.geometry if arguments["frame_axes"] else None),
            frame_axes=arguments["frame_axes"],
            fixed_geometry=resident.geometry if fixed is not None else None,
            timeout=arguments["timeout"],
            key=resident.key,
            affine_only=last in ("rigid", "affine"),
            frame_masks=bool(arguments["frame_masks"]),
        )
        session = SessionCore(self, stage, settings, cancellation)
        await session.open()
        return session


def options_of(arguments: Dict[str, Any], stages: List[v1.Stage], initial: Any) -> v1.RegistrationOptions:
    """The options without masks and weights. Made once for a call, however often it is tried: an argument may be an
    iterator, or an array that the caller changes later."""
    return registration_options(
        stages=stages,
        initial=initial,
        budget=arguments["budget"],
        best_effort=arguments["best_effort"],
        error_limit_mm=arguments["error_limit_mm"],
        error_map=arguments["error_map"],
        error_at=arguments["error_at"],
        keep_deformation=arguments["keep_deformation"],
        find_missing_tissue=arguments["find_missing_tissue"],
        landmarks=arguments["landmarks"],
    )


def session_config(arguments: Dict[str, Any]) -> v1.NavigateConfig:
    config = v1.NavigateConfig(session_id=arguments["id"] or "")
    if arguments["field"] is not None:
        config.field.CopyFrom(field_request(arguments["field"], arguments["stride"], arguments["region"]))
    elif arguments["coarse_field"] or arguments["stride"] is not None or arguments["region"] is not None:
        raise refuse("field", "give an encoding ('int16', say) beside coarse_field, stride or region")
    config.overload_policy = _OVERLOAD[bool(arguments["latest"])]
    if arguments["cancel_running"] is not None:
        config.cancel_running = bool(arguments["cancel_running"])
    if arguments["coarse_field"]:
        config.coarse_field = True
    if arguments["frame_masks"]:
        config.frame_masks = True
    if arguments["max_pending"] is not None:
        config.max_pending = int(arguments["max_pending"])
    if arguments["rate"] is not None:
        config.rate_hz = float(arguments["rate"])
    if arguments["late"] is not None:
        config.late_frames = choice(_LATE, arguments["late"], "late")
    for key, field in (("resume", "resume_window"), ("idle_timeout", "idle_timeout"), ("deadline", "frame_deadline")):
        if arguments[key] is not None:
            getattr(config, field).CopyFrom(duration(arguments[key], key))
    return config


def transform_state(address: str, proto: v1.Transform) -> TransformState:
    state = TransformState(address, proto.name, Report(proto.report) if proto.HasField("report") else None)
    state.proto = proto
    return state
