# SPDX-License-Identifier: Apache-2.0
"""A client made with protoc from the protos alone. Usage: client.py HOST:PORT, with the generated modules on PYTHONPATH."""
import sys

import grpc
from google.rpc import error_details_pb2, status_pb2
from intrawarp.v1 import error_pb2, registration_pb2, server_pb2, server_pb2_grpc, volume_pb2, volume_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
info = server_pb2_grpc.ServerServiceStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest()).info
assert list(info.methods) == [f.name for f in registration_pb2.Stage.DESCRIPTOR.oneofs_by_name["method"].fields]
volumes = volume_pb2_grpc.VolumeServiceStub(channel)
assert not volumes.ListVolumes(volume_pb2.ListVolumesRequest()).volumes
try:
    volumes.GetVolume(volume_pb2.GetVolumeRequest(name="volumes/none"))
    sys.exit("GetVolume of a volume that does not exist succeeded")
except grpc.RpcError as error:
    trailer = dict(error.trailing_metadata())["grpc-status-details-bin"]
    details = status_pb2.Status.FromString(trailer).details
    reason, resource = error_details_pb2.ErrorInfo(), error_details_pb2.ResourceInfo()
    assert details[0].Unpack(reason) and details[1].Unpack(resource)
    assert reason.reason == error_pb2.ErrorReason.Name(error_pb2.RESOURCE_NOT_FOUND) and reason.domain == "intrawarp"
    assert resource.resource_name == "volumes/none"
print(f"{info.version} on {info.devices[0].name}")
