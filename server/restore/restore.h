// SPDX-License-Identifier: Apache-2.0
// Restoring: what a state directory keeps becomes resident again, by the code of uploads, so that it has the bits that
// it had.
#ifndef INTRAWARP_SERVER_RESTORE_RESTORE_H_
#define INTRAWARP_SERVER_RESTORE_RESTORE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/context/server_context.h"
#include "server/job/job_support.h"
#include "server/store/residency.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// Loads every durable object from its verified payload. An object that cannot be loaded (a damaged payload, too little
// memory) is logged by name; questions for it answer OBJECT_DAMAGED, and its id stays taken until it is deleted. Only a
// catalogue that cannot be read is an error. Before the first RPC; the context's durable objects are open.
absl::Status RestoreObjects(ServerContext& context);

// A transform of durable content, in no store, on `device`. Its memory and place come from `reserve`. `description` is
// a serialised v1.Transform. Waits for the disk and the device. Errors: DATA_LOSS, the errors of Ledger::Admit and
// `reserve`.
absl::StatusOr<std::shared_ptr<const StoredTransform>> MakeDurableTransform(DeviceContext& device,
                                                                            const DurableContent& content,
                                                                            const std::string& description,
                                                                            const ReserveFn& reserve);

// The voxels of a volume again, in no store, on `device`, with room claimed for them. Waits for the disk and the
// device. Errors: DATA_LOSS, the errors of Ledger::Admit and the device.
absl::StatusOr<std::shared_ptr<const StoredVolume>> MakeDurableVolume(DeviceContext& device,
                                                                      const StoredVolume& spooled);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RESTORE_RESTORE_H_
