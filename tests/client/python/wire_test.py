# SPDX-License-Identifier: Apache-2.0
"""The messages: up to date with proto/, in a pool of their own, with any API of protobuf; and the package's own
sources."""

import ast
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import intrawarp
from intrawarp import _crc32c, _wire, v1

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "client" / "python"
SOURCES = sorted((PACKAGE / "src" / "intrawarp").glob("*.py"))
PROTOC = os.environ.get("INTRAWARP_PROTOC", "protoc")


@pytest.mark.parametrize("tool", [["make_wire.py", "--check", f"--protoc={PROTOC}"], ["make_sync.py", "--check"]])
def test_what_is_made_is_up_to_date(tool):
    made = subprocess.run(
        [sys.executable, "-B", str(PACKAGE / "tools" / tool[0]), *tool[1:]], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


USER = '''
import intrawarp
from intrawarp import Image, v1


async def later(address: str) -> None:
    async with intrawarp.aio.connect(address) as server:
        async with server.navigate(fixed="volumes/a", method="rigid") as session:
            await session.send(Image.read("a.nii"))
            async for answer in session:
                reveal_type(answer.verdict)


def main() -> float:
    with intrawarp.testing.FakeServer() as fake, intrawarp.connect(fake.address) as server:
        try:
            result = server.register(intrawarp.phantom().fixed, "b.nii.gz", method="ffd", iterations=3)
        except intrawarp.NotFound as error:
            reveal_type(error.retry_after)
            return 0.0
        reveal_type(result.report.proto.latency.total_ms)
        for answer in server.navigate(fixed=result.fixed):
            reveal_type(answer.number)
        return v1.Report().overlap
'''


def test_mypy_strict(tmp_path):
    """The package, and a program that uses it, whose types are known."""
    try:
        import mypy.api
    except ImportError:
        pytest.fail("mypy is not installed")
    (tmp_path / "user.py").write_text(USER)
    os.environ["MYPYPATH"] = str(PACKAGE / "src")
    try:
        out, problems, status = mypy.api.run(
            [
                "--config-file",
                str(PACKAGE / "pyproject.toml"),
                "--cache-dir",
                os.devnull,
                str(PACKAGE / "src" / "intrawarp"),
                str(tmp_path / "user.py"),
            ]
        )
    finally:
        del os.environ["MYPYPATH"]
    assert status == 0, out + problems
    revealed = [line.split("Revealed type is ")[1] for line in out.splitlines() if "Revealed type is" in line]
    assert [each.strip('"') for each in revealed] == [
        "builtins.str",
        "Union[builtins.float, None]",
        "builtins.float",
        "builtins.int",
    ]


def test_the_oldest_python_can_parse_it():
    for path in SOURCES:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            # "X | Y" in annotations and match statements came with 3.10.
            assert not isinstance(node, getattr(ast, "Match", ())), path


def test_importing_needs_only_numpy_grpcio_and_protobuf():
    code = (
        "import sys; before = set(sys.modules); import intrawarp, intrawarp.aio, intrawarp.testing; "
        "print(' '.join(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE / "src")},
    ).stdout.split()
    assert "intrawarp" in out
    for package in ("scipy", "nibabel", "pydicom", "matplotlib", "SimpleITK", "itk", "torch", "tqdm", "rich"):
        assert package not in out


def test_stubs_name_what_is_there():
    tree = ast.parse((PACKAGE / "src" / "intrawarp" / "v1.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {*classes, *(node.target.id for node in tree.body if isinstance(node, ast.AnnAssign))}
    stubs_alone = {"Repeated", "RepeatedMessage", "Enum"}
    assert set(v1.__all__) == names - stubs_alone
    for name, node in classes.items():
        descriptor = getattr(getattr(v1, name, None), "DESCRIPTOR", None)
        if descriptor is None or not hasattr(descriptor, "fields") or name == "Message":
            continue
        attributes = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        nested = {value.name for enum in descriptor.enum_types for value in enum.values}
        assert attributes == {field.name for field in descriptor.fields} | nested, name


def test_both_apis_of_protobuf(monkeypatch):
    descriptors = (PACKAGE / "src" / "intrawarp" / "wire.binpb").read_bytes()
    message_factory = _wire.message_factory
    tried = 0
    for use_new in (True, False):
        if use_new and not hasattr(message_factory, "GetMessageClass"):

            class Modern:
                @staticmethod
                def GetMessageClass(descriptor):
                    return message_factory.MessageFactory(descriptor.file.pool).GetPrototype(descriptor)

            monkeypatch.setattr(_wire, "message_factory", Modern)
        elif not use_new:
            monkeypatch.setattr(_wire, "message_factory", message_factory)
            if not hasattr(message_factory, "MessageFactory"):
                continue
            monkeypatch.delattr(message_factory, "GetMessageClass", raising=False)
        wire = _wire.Wire(descriptors)
        made = wire.names["Geometry"](size=[1, 2, 3])
        assert wire.names["Geometry"].FromString(made.SerializeToString()).size == [1, 2, 3]
        assert wire.names["ErrorReason"].Value("INVALID_FIELD") == 1
        request = wire.methods["/intrawarp.v1.ServerService/GetServerInfo"][0]
        assert request.DESCRIPTOR.full_name == "intrawarp.v1.GetServerInfoRequest"
        tried += 1
    assert tried >= 1


BESIDE = '''
import sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "generated first":
    from intrawarp_generated import common_pb2
import intrawarp
from intrawarp import v1
if sys.argv[2] != "generated first":
    from intrawarp_generated import common_pb2
# Another version of the same file, whose field has another name, in the host program's pool.
other = common_pb2.Geometry(lengths=[1, 2, 3])
ours = v1.Geometry(size=[4, 5, 6])
assert type(other) is not type(ours)
assert v1.Geometry.FromString(other.SerializeToString()).size == [1, 2, 3]
assert not hasattr(ours, "lengths") and not hasattr(other, "size")
from google.protobuf import timestamp_pb2
assert v1.Volume(name="volumes/a").name == "volumes/a"
print("both")
'''


@pytest.mark.parametrize("order", ["generated first", "package first"])
@pytest.mark.parametrize("implementation", ["", "python"])
def test_beside_generated_code_of_another_version(tmp_path, order, implementation):
    """The host program has generated code with the very names of our protos, of another version."""
    proto = tmp_path / "proto" / "intrawarp" / "v1"
    proto.mkdir(parents=True)
    text = (ROOT / "proto" / "intrawarp" / "v1" / "common.proto").read_text()
    (proto / "common.proto").write_text(text.replace("repeated int64 size = 1;", "repeated int64 lengths = 1;"))
    subprocess.run(
        [PROTOC, f"-I{tmp_path / 'proto'}", f"--python_out={tmp_path}", "intrawarp/v1/common.proto"], check=True
    )
    # A package of that name would hide ours; the descriptors keep their names.
    (tmp_path / "intrawarp_generated").mkdir()
    (tmp_path / "intrawarp_generated" / "__init__.py").write_text("")
    os.rename(tmp_path / "intrawarp" / "v1" / "common_pb2.py", tmp_path / "intrawarp_generated" / "common_pb2.py")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    if implementation:
        environment["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = implementation
    out = subprocess.run(
        [sys.executable, "-B", "-c", BESIDE, str(tmp_path), order], capture_output=True, text=True, env=environment
    )
    assert out.stdout == "both\n", out.stderr


@pytest.mark.parametrize("size", [1, 2, 127, 128, 300, 16384, 70000])
@pytest.mark.parametrize("offset", [0, 1, 127, 128, 2**40])
def test_chunks_are_protobufs(size, offset):
    data = np.random.default_rng(size).bytes(size)
    made = v1.UploadRequest(chunk=v1.Chunk(offset=offset, crc32c=0xDEADBEEF, data=data)).SerializeToString()
    ours = _wire.encode_chunk(2, offset, 0xDEADBEEF, memoryview(data))
    assert v1.UploadRequest.FromString(ours) == v1.UploadRequest.FromString(made)
    for message in (ours, made):
        chunk = _wire.decode_chunk(message, 2)
        assert (chunk.offset, chunk.crc32c, bytes(chunk.data)) == (offset, 0xDEADBEEF, data)
        assert _wire.decode_chunk(message, 3) is None
        for cut in range(0, min(len(message), 12)):
            assert _wire.decode_chunk(message[:cut], 2) is None
    assert _wire.decode_chunk(v1.UploadRequest(header=v1.UploadHeader(id="a")).SerializeToString(), 2) is None


def bitwise(data, crc=0):
    """CRC32C from its definition."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc32c_vectors():
    """RFC 3720, appendix B.4, and the check value."""
    for data, crc in (
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ):
        assert _crc32c.crc32c(data) == _crc32c._extend_numpy(0, memoryview(data)) == crc


def test_crc32c_of_every_length_and_in_pieces():
    data = np.random.default_rng(1).bytes(700)
    for size in range(len(data) + 1):
        assert _crc32c._extend_numpy(0, memoryview(data[:size])) == bitwise(data[:size]), size
    # Around the lengths where another way of shortening begins: a checksum of the whole is the one of its pieces.
    steps = [290 * scale for scale in (2, 4, 8, 16)] + [5685 * scale for scale in (1, 2, 4, 8, 16)]
    history, block = _crc32c._HISTORY, _crc32c._BLOCK
    blocks = [2 * history + count * block for count in range(_crc32c._BLOCKS + 2)]
    large = np.random.default_rng(2).bytes(blocks[-1] + 17)
    for size in (*(at + extra for at in steps + blocks for extra in (-1, 0, 1)), len(large)):
        whole = _crc32c._extend_numpy(3, memoryview(large[:size]))
        state = 3
        for first in range(0, size, 500):
            state = _crc32c._extend_numpy(state, memoryview(large[first : min(size, first + 500)]))
        assert whole == state, size


def test_crc32c_notices_each_bit():
    data = np.random.default_rng(3).integers(0, 256, 3 * _crc32c._HISTORY + 5, dtype=np.uint8)
    right = _crc32c._extend_numpy(0, data.data)
    for place in np.random.default_rng(4).integers(0, 8 * len(data), 300):
        data[place // 8] ^= 1 << place % 8
        assert _crc32c._extend_numpy(0, data.data) != right, place
        data[place // 8] ^= 1 << place % 8


def test_crc32c_on_several_threads():
    messages = [np.random.default_rng(seed).bytes(1 << 20) for seed in range(4)]
    right = [_crc32c._extend_numpy(0, memoryview(each)) for each in messages]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda place: _crc32c._extend_numpy(0, memoryview(messages[place % 4])), range(80))
    assert list(found) == 20 * right


def test_crc32c_of_arrays():
    array = np.arange(100, dtype=np.int16).reshape(10, 10)
    assert _crc32c.crc32c(array.data) == bitwise(array.tobytes())


def test_version_is_the_projects():
    text = (ROOT / "CMakeLists.txt").read_text()
    assert f"project(intrawarp VERSION {intrawarp.__version__} " in text


@pytest.mark.parametrize("name", ["google_crc32c", "crc32c"])
def test_a_compiled_checksum_is_used_where_it_is_installed(monkeypatch, name):
    import types

    calls = []

    def extend(crc, data):
        assert name != "google_crc32c" or isinstance(data, bytes)
        calls.append(len(data))
        return bitwise(data, crc)

    module = types.ModuleType(name)
    if name == "google_crc32c":
        module.extend, module.implementation = extend, "c"
    else:
        module.crc32c = lambda data, crc=0: extend(crc, data)
    monkeypatch.setitem(sys.modules, name, module)
    found, function = _crc32c._find_extend()
    assert found == name and function(0, memoryview(b"123456789")) == 0xE3069283 and calls
    # One that computes something else, or is slow Python itself, is not.
    module.implementation = "python"
    if name == "google_crc32c":
        assert _crc32c._find_extend()[0] == "numpy"
    else:
        module.crc32c = lambda data, crc=0: 0
        assert _crc32c._find_extend()[0] == "numpy"
