// SPDX-License-Identifier: Apache-2.0
// Fields of transforms as streams that are evaluated on their way (server/bulk/slab_source.h): a client that does not
// read holds a ring of pinned slabs and the transform.
#ifndef INTRAWARP_SERVER_BULK_FIELD_STREAM_H_
#define INTRAWARP_SERVER_BULK_FIELD_STREAM_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/schedule/latency.h"
#include "engine/transform/transform.h"
#include "server/bulk/device_bulk.h"
#include "server/bulk/field_request.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// What a stream of `total_bytes` on `grid` holds beside the transform; for control points the grid is not looked at.
Amounts FieldStreamAmounts(const Device& device, const FieldRequest& request, const Geometry& grid, int64_t total_bytes,
                           int64_t offset);

struct FieldStream {
  v1::FieldHeader header;
  std::shared_ptr<DeviceBulk> bulk;
  // Null for control points, which are only copied.
  std::shared_ptr<const FieldSource> source;
};

// Workspace of MakeFieldStream.
int64_t FieldStreamWorkspaceBytes();

// The bytes from `offset` on of a field on `grid` (FieldGrid's). `owner` keeps the transform's memory accounted;
// `grant` holds FieldStreamAmounts, of which the stream takes its part. Waits for the stream of `ctx`, which must
// outlive the result. The errors of MakeFieldAnswer, within "field".
absl::StatusOr<FieldStream> MakeFieldStream(const ExecContext& ctx, DeviceContext& context, const FieldRequest& request,
                                            const Transform& transform, std::shared_ptr<const void> owner,
                                            const Geometry& grid, int64_t offset, Grant& grant);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_FIELD_STREAM_H_
