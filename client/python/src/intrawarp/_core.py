# SPDX-License-Identifier: Apache-2.0
"""Core: one server or several behind one name, and every call of the package. Internal.

What belongs to one volume goes to one server, the first in the order of its digest that is well, and to the next one
when that server fails (rendezvous hashing, as the C++ client does it, so that both agree). A target that names one
server is used plainly: nothing is asked before a call, and no call is repeated.
"""
import hashlib
import ipaddress
import os
import socket
import threading
import uuid
from typing import Any, Awaitable, Callable, Dict, List, Optional, Set, Tuple

import numpy as np

from . import errors, v1
from ._geometry import Geometry
from ._io import Cancellation, Io
from ._link import Deadline, Link, Options, Receiver, Transfer, download, parse, resume, upload
from ._options import duration, refuse
from ._wire import decode_chunk
from .field import Field, field_bytes
from .image import Image
from .progress import Reporter, stage_fraction

_PAGE = 500
_MAX_SERVERS = 256
_MAX_POINTS = 32768
_CONTROL_POINTS = 1024
_ONE_WAIT = 30.0
_DEFAULT_ITERATIONS = {"rigid": 50, "affine": 50, "ffd": 150, "log_demons": 100}

Work = Callable[[Link], Awaitable[Any]]


# ---- names of servers -----------------------------------------------------------------------------------------------


def _split(address: str) -> Tuple[str, str]:
    host, colon, port = address.rpartition(":")
    brackets = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not port.isdigit()
        or not 1 <= int(port) <= 65535
        or not host.strip("[]")
        or (":" in host and not brackets)
    ):
        raise refuse("address", f"'{address}' is not HOST:PORT")
    return host.strip("[]"), port


def parse_names(target: str) -> Tuple[List[str], str]:
    """The targets that an address names, or the HOST:PORT that is to be looked up."""
    if not target:
        raise refuse("address", "is empty: give HOST:PORT, or set INTRAWARP_SERVER")
    for prefix in ("dns:///", "dns:"):
        if target.startswith(prefix) and not target[len(prefix) :].startswith("//"):
            _split(target[len(prefix) :])
            return [], target[len(prefix) :]
    if "," not in target:
        return [target], ""
    scheme, rest = "", target
    for each in ("ipv4:", "ipv6:"):
        if target.startswith(each):
            scheme, rest = each, target[len(each) :]
            rest = rest[3:] if rest.startswith("///") else rest
    targets = []
    for address in rest.split(","):
        _split(address)
        targets.append(scheme + address)
    if len(targets) > _MAX_SERVERS:
        raise refuse("address", f"names more than {_MAX_SERVERS} servers")
    return targets, ""


def look_up(name: str, timeout: float) -> List[str]:
    """The targets of a HOST:PORT: its IPv4 addresses where there are any, else its IPv6 ones."""
    host, port = _split(name)
    found: List[Any] = []

    def ask() -> None:
        try:
            found.append(socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)

    # getaddrinfo can be neither bounded nor cancelled.
    thread = threading.Thread(target=ask, name="intrawarp-resolver", daemon=True)
    thread.start()
    thread.join(timeout)
    if not found:
        raise errors.DeadlineExceeded(f"{name}: the resolver does not answer", code="DEADLINE_EXCEEDED")
    if isinstance(found[0], OSError):
        raise errors.ConnectionLost(
            f"{name}: {found[0].strerror or 'is not known'}", code="UNAVAILABLE", retry_after=1.0
        )
    addresses = {ipaddress.ip_address(each[4][0].partition("%")[0]) for each in found[0]}
    version = min(each.version for each in addresses)
    targets = sorted(
        f"ipv4:{each}:{port}" if version == 4 else f"ipv6:[{each}]:{port}"
        for each in addresses
        if each.version == version
    )
    return targets[:_MAX_SERVERS]


def rendezvous(addresses: List[str], key: str) -> List[str]:
    """All addresses; the first one owns the key. Weights are the first 8 bytes of SHA-256(address + "\\n" + key)."""

    def weight(address: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{address}\n{key}".encode()).digest()[:8], "big")

    return sorted(sorted(set(addresses)), key=weight, reverse=True)


def new_id() -> str:
    return str(uuid.uuid4())


def digest_of(view: memoryview) -> bytes:
    return hashlib.sha256(view).digest()


# ---- the core -------------------------------------------------------------------------------------------------------


class Core:
    def __init__(self, io: Io, target: str, options: Options) -> None:
        self.io = io
        self.target = target
        self.options = options
        self._targets, self._dns_name = parse_names(target)
        self._lock = threading.Lock()
        self._links: Dict[str, Link] = {}
        self._closed = False
        # What this client has made, to be deleted at the end of a `with`: (address, name).
        self._made: Dict[Tuple[str, str], None] = {}
        options.security.credentials()

    # ---- servers ----

    async def addresses(self) -> List[str]:
        if not self._targets:
            await self.refresh()
        return list(self._targets)

    async def refresh(self) -> None:
        """Looks the name up again; keeps the addresses where that fails."""
        if not self._dns_name:
            return
        try:
            found = await self.io.blocking(look_up, self._dns_name, self.options.probe_timeout)
        except errors.IntrawarpError:
            if not self._targets:
                raise
            return
        # gRPC looks for a lone server itself.
        self._targets = [self.target] if len(found) == 1 else found

    @property
    def has_several(self) -> bool:
        return len(self._targets) > 1 or (not self._targets and bool(self._dns_name))

    def link_at(self, address: str) -> Link:
        with self._lock:
            if self._closed:
                raise errors.Cancelled("this connection to the server was closed", code="CANCELLED")
            link = self._links.get(address)
            if link is None:
                options = self.options
                if self._dns_name and len(self._targets) > 1 and not options.authority:
                    import dataclasses

                    options = dataclasses.replace(options, authority=self._dns_name)
                link = self._links[address] = Link(self.io, address, options)
            return link

    async def order(self, key: str = "", first: str = "") -> List[str]:
        order = rendezvous(await self.addresses(), self.options.routing_key or key)
        if first in order:
            order.remove(first)
            order.insert(0, first)
        return order

    async def run(self, work: Work, key: str = "", first: str = "", cancellation: Optional[Cancellation] = None) -> Any:
        """Calls work(link) for the servers in their order, passing over those that are not well, until it ends
        otherwise than by a server's fault."""
        order = await self.order(key, first)
        if len(order) == 1:
            return await work(self.link_at(order[0]))
        last: Optional[errors.IntrawarpError] = None
        for address in order:
            if cancellation is not None and cancellation.cancelled:
                raise errors.Cancelled("the call was cancelled", code="CANCELLED")
            link = self.link_at(address)
            if not await link.is_well():
                continue
            try:
                return await work(link)
            except errors.IntrawarpError as error:
                if not errors.is_servers_fault(error) or isinstance(error, errors.Cancelled):
                    raise
                last = error
        await self.refresh()
        if last is not None:
            raise last
        raise errors.ConnectionLost(
            f"no server is left of {len(order)}: none of them is well", code="UNAVAILABLE", retry_after=1.0
        )

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            await link.close()

    # ---- what was made ----

    def remember(self, address: str, name: str) -> None:
        with self._lock:
            self._made[address, name] = None

    def forget(self, address: str, name: str) -> None:
        with self._lock:
            self._made.pop((address, name), None)

    async def delete_made(self, timeout: float) -> List[str]:
        """Deletes what this client has made, newest first; the names that could not be deleted in time."""
        with self._lock:
            made = list(reversed(self._made))
            self._made.clear()
        deadline = Deadline(timeout)
        left = []
        gone: Set[str] = set()
        for address, name in made:
            if deadline.passed or address in gone:
                left.append(name)
                continue
            try:
                await self.delete(self.link_at(address), name, timeout=deadline.left())
            except errors.NotFound:
                continue
            except errors.IntrawarpError as error:
                left.append(name)
                # A server that cannot be reached is asked once.
                if errors.is_broken(error) or isinstance(error, errors.DeadlineExceeded):
                    gone.add(address)
        return left

    # ---- small calls ----

    async def call(
        self,
        name: str,
        request: v1.Message,
        timeout: Optional[float] = None,
        cancellation: Optional[Cancellation] = None,
        first: str = "",
    ) -> Any:
        async def work(link: Link) -> Any:
            return await link.unary(name, request, timeout, cancellation)

        return await self.run(work, first=first, cancellation=cancellation)

    async def pages(
        self,
        name: str,
        request: Any,
        member: str,
        timeout: Optional[float] = None,
        cancellation: Optional[Cancellation] = None,
    ) -> List[Tuple[str, Any]]:
        """All entries of all servers that are well: (address, message)."""
        entries: List[Tuple[str, Any]] = []
        addresses = await self.addresses()
        for address in addresses:
            link = self.link_at(address)
            if len(addresses) > 1 and not await link.is_well():
                continue
            request.page_size = _PAGE
            request.page_token = ""
            while True:
                response = await link.unary(name, request, timeout, cancellation)
                entries += [(address, each) for each in getattr(response, member)]
                if not response.next_page_token:
                    break
                request.page_token = response.next_page_token
        return entries

    async def delete(
        self, link: Link, name: str, timeout: Optional[float] = None, cancellation: Optional[Cancellation] = None
    ) -> None:
        collection = name.partition("/")[0]
        kinds: Dict[str, Tuple[str, Any]] = {
            "volumes": ("DeleteVolume", v1.DeleteVolumeRequest),
            "transforms": ("DeleteTransform", v1.DeleteTransformRequest),
            "sparseMatrices": ("DeleteSparseMatrix", v1.DeleteSparseMatrixRequest),
            "sessions": ("CloseSession", v1.CloseSessionRequest),
        }
        if collection not in kinds:
            raise refuse("name", f"'{name}' is none of volumes/ID, transforms/ID, sparseMatrices/ID, sessions/ID")
        method, request = kinds[collection]
        await link.unary(method, request(name=name), timeout, cancellation)
        self.forget(link.address, name)

    async def find(
        self, name: str, timeout: Optional[float] = None, cancellation: Optional[Cancellation] = None
    ) -> Tuple[str, Any]:
        """Where an object is, and what the server says of it."""
        collection = name.partition("/")[0]
        kinds: Dict[str, Tuple[str, Any, str]] = {
            "volumes": ("GetVolume", v1.GetVolumeRequest, "volume"),
            "transforms": ("GetTransform", v1.GetTransformRequest, "transform"),
            "sparseMatrices": ("GetSparseMatrix", v1.GetSparseMatrixRequest, "sparse_matrix"),
            "sessions": ("GetSession", v1.GetSessionRequest, "session"),
            "operations": ("GetOperation", v1.GetOperationRequest, "operation"),
        }
        if collection not in kinds:
            raise refuse(
                "name", f"'{name}' is none of volumes/ID, transforms/ID, sparseMatrices/ID, sessions/ID, operations/ID"
            )
        method, request, member = kinds[collection]
        addresses = await self.addresses()
        last: Optional[errors.IntrawarpError] = None
        for address in addresses:
            link = self.link_at(address)
            if len(addresses) > 1 and not await link.is_well():
                continue
            try:
                response = await link.unary(method, request(name=name), timeout, cancellation)
                return address, getattr(response, member)
            except errors.NotFound as error:
                last = error
        raise last or errors.ConnectionLost("none of the servers is well", code="UNAVAILABLE", retry_after=1.0)

    # ---- uploads ----

    async def put_object(
        self,
        link: Link,
        header: v1.UploadHeader,
        view: memoryview,
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        sha256: bytes = b"",
    ) -> Any:
        """Uploads what `header.content` announces; the answer. Remembers what was stored."""
        header.upload_id = new_id()
        header.total_bytes = len(view)
        header.sha256 = sha256 or await self.io.blocking(digest_of, view)
        reporter.bytes(0, len(view))
        try:
            answer = await upload(link, header, view, reporter.bytes, timeout, cancellation)
            reporter.bytes(len(view), len(view))
        finally:
            reporter.close()
        if not answer.already_resident:
            stored = getattr(answer, answer.WhichOneof("object") or "volume")
            self.remember(link.address, stored.name)
        return answer

    async def put_volume(
        self,
        link: Link,
        image: Image,
        id: str,
        pinned: bool,
        ttl: Optional[float],
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        sha256: bytes = b"",
    ) -> v1.Volume:
        header = v1.UploadHeader(id=id)
        volume = header.volume
        volume.geometry.CopyFrom(image.geometry.to_proto())
        volume.pixel_type = image.pixel_type
        if image.rescale is not None:
            volume.rescale.slope, volume.rescale.intercept = image.rescale
        if image.provenance is not None:
            volume.provenance.CopyFrom(image.provenance)
        volume.pinned = pinned
        if ttl is not None:
            header.ttl.CopyFrom(duration(ttl, "ttl"))
        answer = await self.put_object(link, header, image.buffer(), reporter, timeout, cancellation, sha256)
        stored: v1.Volume = answer.volume
        return stored

    # ---- downloads ----

    async def get_volume(
        self, link: Link, name: str, reporter: Reporter, timeout: Optional[float], cancellation: Optional[Cancellation]
    ) -> Image:
        receiver = Receiver(self.options.max_answer_bytes)
        geometry: List[Geometry] = []

        def begin(header: v1.DownloadHeader) -> None:
            geometry.append(checked_grid(header.volume.geometry, header.total_bytes))

        try:
            await download(
                link,
                "Download",
                v1.DownloadRequest(name=name),
                2,
                begin,
                receiver,
                reporter.bytes,
                timeout,
                cancellation,
            )
        finally:
            reporter.close()
        return float_image(receiver.data, geometry[0])

    async def warp(
        self,
        link: Link,
        request: v1.WarpVolumeRequest,
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Image:
        receiver = Receiver(self.options.max_answer_bytes)
        geometry: List[Geometry] = []

        def begin(header: v1.WarpHeader) -> None:
            geometry.append(checked_grid(header.geometry, header.total_bytes))

        try:
            await download(link, "WarpVolume", request, 2, begin, receiver, reporter.bytes, timeout, cancellation)
        finally:
            reporter.close()
        return float_image(receiver.data, geometry[0])

    async def get_field(
        self,
        link: Link,
        request: v1.DownloadRequest,
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
        affine: Any,
        domain: Optional[Geometry],
    ) -> Field:
        receiver = Receiver(self.options.max_answer_bytes)

        def begin(header: v1.DownloadHeader) -> None:
            if field_bytes(header.field) != header.total_bytes:
                raise errors.InternalError("the server's header contradicts itself", code="INTERNAL")

        try:
            header = await download(
                link, "Download", request, 2, begin, receiver, reporter.bytes, timeout, cancellation
            )
        finally:
            reporter.close()
        return Field.from_wire(header.field, receiver.data, affine=affine, domain=domain)

    async def get_bytes(
        self, link: Link, name: str, reporter: Reporter, timeout: Optional[float], cancellation: Optional[Cancellation]
    ) -> Tuple[Any, Any]:
        """A DownloadHeader and its bytes (sparse matrices)."""
        receiver = Receiver(self.options.max_answer_bytes)
        try:
            header = await download(
                link,
                "Download",
                v1.DownloadRequest(name=name),
                2,
                lambda header: None,
                receiver,
                reporter.bytes,
                timeout,
                cancellation,
            )
        finally:
            reporter.close()
        return header, receiver.data

    # ---- work ----

    async def register(
        self,
        link: Link,
        request: v1.RegisterRequest,
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Tuple[v1.RegisterResult, Optional[Field]]:
        deadline = Deadline(timeout)
        stream = link.stream("Register", request.SerializeToString(), deadline.left(), cancellation)
        receiver = Receiver(self.options.max_answer_bytes)
        header: Optional[v1.FieldHeader] = None
        result: Optional[v1.RegisterResult] = None
        stages = [each.WhichOneof("method") or "" for each in request.options.stages]
        try:
            while True:
                message = await stream.read()
                if message is None:
                    break
                chunk = decode_chunk(message, 3)
                if chunk is not None:
                    receiver.append(chunk)
                    continue
                response = parse(v1.RegisterResponse, message)
                kind = response.WhichOneof("payload")
                if kind == "progress":
                    report_stage(reporter, stages, request, response.progress)
                elif kind == "field":
                    receiver.begin(field_bytes(response.field))
                    header = response.field
                elif kind == "result":
                    result = response.result
        except errors.IntrawarpError as error:
            stream.blame(error)
            raise
        finally:
            stream.close()
            reporter.close()
        if result is None:
            raise errors.InternalError("the server ended without a result", code="INTERNAL", address=link.address)
        reporter(1.0, "done")
        reporter.close()
        self.remember(link.address, result.transform)
        if header is None:
            return result, None
        return result, Field.from_wire(header, receiver.finish(), affine=None)

    async def multiply(
        self,
        link: Link,
        request: Any,
        reporter: Reporter,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Tuple[v1.MultiplyResult, Any, Any]:
        """The result of a MultiplyRequest or a MultiplyTripleRequest, and the header and bytes of the product; None for
        a product that is kept."""
        deadline = Deadline(timeout)
        products = 2 if isinstance(request, v1.MultiplyTripleRequest) else 1
        method = "MultiplyTriple" if products == 2 else "Multiply"
        stream = link.stream(method, request.SerializeToString(), deadline.left(), cancellation)
        receiver = Receiver(self.options.max_answer_bytes)
        header: Any = None
        result: Optional[v1.MultiplyResult] = None
        steps = {1: (0.1, "estimated"), 2: (0.4, "planned"), 3: (0.8, "multiplied")}
        try:
            while True:
                message = await stream.read()
                if message is None:
                    break
                chunk = decode_chunk(message, 3)
                if chunk is not None:
                    receiver.append(chunk)
                    continue
                response = parse(v1.MultiplyResponse, message)
                kind = response.WhichOneof("payload")
                if kind == "progress" and response.progress.step in steps:
                    done, step = steps[response.progress.step]
                    reporter((max(response.progress.product, 1) - 1 + done) / products, step)
                elif kind == "header":
                    header = response.header
                    receiver.begin(header.total_bytes)
                elif kind == "result":
                    result = response.result
        except errors.IntrawarpError as error:
            stream.blame(error)
            raise
        finally:
            stream.close()
            reporter.close()
        if result is None:
            raise errors.InternalError("the server ended without a result", code="INTERNAL", address=link.address)
        if result.HasField("sparse_matrix"):
            self.remember(link.address, result.sparse_matrix.name)
        return result, header, receiver.finish() if header is not None else None

    async def start(
        self, link: Link, name: str, request: Any, timeout: Optional[float], cancellation: Optional[Cancellation]
    ) -> v1.Operation:
        """Begins work that goes on without its call. A request is repeated over a connection that broke: its id finds
        the operation, or begins it."""
        request.detach = True
        if not request.request_id:
            request.request_id = new_id()
        deadline = Deadline(timeout if timeout is not None else self.options.timeout)
        transfer = Transfer()
        response_class: Any = v1.RegisterResponse if name == "Register" else v1.MultiplyResponse

        async def attempt() -> v1.Operation:
            stream = link.stream(name, request.SerializeToString(), deadline.left(), cancellation)
            operation: Optional[v1.Operation] = None
            try:
                while True:
                    message = await stream.read()
                    if message is None:
                        break
                    transfer.reached = True
                    response = parse(response_class, message)
                    if response.WhichOneof("payload") == "operation":
                        operation = response.operation
            finally:
                stream.close()
            if operation is None:
                raise errors.InternalError(
                    "the server ended without an operation: is it an older one?", code="INTERNAL"
                )
            return operation

        begun: v1.Operation = await resume(link, transfer, deadline, cancellation, attempt)
        return begun

    async def wait_operation(
        self, link: Link, name: str, timeout: Optional[float], cancellation: Optional[Cancellation]
    ) -> v1.Operation:
        """The operation once it has ended, however it did; over new connections where one breaks."""
        deadline = Deadline(timeout)
        transfer = Transfer()
        transfer.reached = True  # the operation is known to be there

        async def attempt() -> v1.Operation:
            while True:
                left = deadline.left()
                if deadline.passed:
                    raise errors.DeadlineExceeded(
                        "the operation has not ended in time", code="DEADLINE_EXCEEDED", resource=name
                    )
                wait = _ONE_WAIT if left is None else min(_ONE_WAIT, left)
                request = v1.WaitOperationRequest(name=name, timeout=duration(wait, "timeout"))
                response = await link.unary("WaitOperation", request, wait + self.options.timeout, cancellation)
                if response.operation.state in (v1.OPERATION_STATE_DONE, v1.OPERATION_STATE_FAILED):
                    ended: v1.Operation = response.operation
                    return ended
                transfer.arrived += 1

        ended: v1.Operation = await resume(link, transfer, deadline, cancellation, attempt)
        return ended

    async def map_points(
        self,
        link: Link,
        transform: str,
        points: Any,
        inverse: bool,
        timeout: Optional[float],
        cancellation: Optional[Cancellation],
    ) -> Any:
        """(N, 3) LPS mm; sent in batches."""
        deadline = Deadline(timeout)
        mapped = np.empty_like(points)
        for first in range(0, len(points), _MAX_POINTS):
            batch = points[first : first + _MAX_POINTS]
            request = v1.MapPointsRequest(transform=transform, inverse=inverse, points=batch.reshape(-1).tolist())
            response = await link.unary(
                "MapPoints", request, deadline.left(), cancellation, bulk=len(points) > _CONTROL_POINTS
            )
            if len(response.points) != batch.size:
                raise errors.InternalError(
                    f"the server answered {len(response.points)} numbers for {len(batch)} points", code="INTERNAL"
                )
            mapped[first : first + len(batch)] = np.array(response.points).reshape(-1, 3)
        return mapped


def report_stage(reporter: Reporter, stages: List[str], request: v1.RegisterRequest, step: v1.Progress) -> None:
    if not reporter.wanted:
        return
    iterations = 0
    if 0 <= step.stage < len(stages) and stages[step.stage]:
        message = getattr(request.options.stages[step.stage], stages[step.stage])
        iterations = message.iterations or _DEFAULT_ITERATIONS[stages[step.stage]]
    fraction, text = stage_fraction(step.stage, len(stages), step.level, step.levels, step.iteration, iterations)
    value = step.value if step.iteration > 0 else None
    # The whole is done when the result is there.
    reporter(min(0.99, fraction), text, step.iteration, iterations, value)


def checked_grid(message: v1.Geometry, total_bytes: int) -> Geometry:
    """The grid of a header of float32 voxels; InternalError where it contradicts itself."""
    try:
        geometry = Geometry.from_proto(message)
    except errors.GeometryError as error:
        raise errors.InternalError(
            f"the server sent a grid that is not one: {error.message}", code="INTERNAL"
        ) from None
    if total_bytes != 4 * geometry.voxels:
        raise errors.InternalError(
            f"the server announced {total_bytes} bytes for {geometry.voxels} voxels", code="INTERNAL"
        )
    return geometry


def float_image(data: Any, geometry: Geometry) -> Image:
    return Image(data.view("<f4").reshape(geometry.size_zyx), axes="zyx", geometry=geometry)


def default_address() -> str:
    return os.environ.get("INTRAWARP_SERVER", "")
