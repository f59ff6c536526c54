// SPDX-License-Identifier: Apache-2.0
// A copy of resident bytes on another device, made slab by slab through two pinned slabs: the copy lane of the one
// device fills one of them while that of the other empties the other.
#ifndef INTRAWARP_SERVER_PLACEMENT_DEVICE_TRANSFER_H_
#define INTRAWARP_SERVER_PLACEMENT_DEVICE_TRANSFER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "server/bulk/slab_source.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// A buffer for each piece.
using TransferredFn = std::function<void(absl::StatusOr<std::vector<Buffer>> copied)>;

// Copies `bytes` from `from` to `to`, whose ledger must have granted them. `done` is called once: on a thread of a copy
// lane's, or on this one when the transfer cannot begin; the buffers are complete for every stream, and belong to the
// stream of the lane of `to`. Takes pinned slabs from `share`, and may wait for its page-locking. Errors: those of the
// devices and of Admit; UNAVAILABLE when a lane has stopped.
void StartTransfer(DeviceContext& from, DeviceContext& to, ResidentBytes bytes, Share share, TransferredFn done);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PLACEMENT_DEVICE_TRANSFER_H_
