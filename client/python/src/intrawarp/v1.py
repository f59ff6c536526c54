# SPDX-License-Identifier: Apache-2.0
"""The messages and enums of the wire (proto/intrawarp/v1), as classes that are made at run time.

`v1.RegisterRequest`, `v1.VERDICT_OK` and so on have the names of the protos; a message within a message has its
parent's name before it (`v1.MultiplyProgress_Step`), and a message of another package that package's
(`v1.GoogleRpcStatus`). Everything behaves as classes that protoc has generated do.
"""
from google.protobuf.message import Message

from ._wire import WIRE

globals().update(WIRE.names)
__all__ = ["Message", *sorted(WIRE.names)]
