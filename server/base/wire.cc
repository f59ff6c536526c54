// SPDX-License-Identifier: Apache-2.0
#include "server/base/wire.h"

#include "engine/base/checked.h"
#include "server/status/errors.h"

namespace intrawarp::server {

v1::LatencyBreakdown LatencyToProto(const LatencyBreakdown& from) {
  const auto ms = [&from](Phase phase) { return std::chrono::duration<double, std::milli>(from.phase(phase)).count(); };
  v1::LatencyBreakdown to;
  to.set_receive_ms(ms(Phase::kReceive));
  to.set_admit_ms(ms(Phase::kAdmit));
  to.set_queue_ms(ms(Phase::kQueue));
  to.set_upload_ms(ms(Phase::kUpload));
  to.set_prepare_ms(ms(Phase::kPrepare));
  to.set_optimise_ms(ms(Phase::kOptimise));
  to.set_assess_ms(ms(Phase::kAssess));
  to.set_encode_ms(ms(Phase::kEncode));
  to.set_download_ms(ms(Phase::kDownload));
  to.set_send_ms(ms(Phase::kSend));
  to.set_total_ms(std::chrono::duration<double, std::milli>(from.total()).count());
  return to;
}

absl::StatusOr<int64_t> ImageBytes(const Geometry& geometry, int64_t bytes_per_voxel) {
  int64_t bytes = bytes_per_voxel;
  for (int a = 0; a < 3; ++a) {
    absl::StatusOr<int64_t> product = CheckedMultiply(bytes, geometry.size[a]);
    if (!product.ok()) return InvalidField("size", "the product of the sizes overflows");
    bytes = *product;
  }
  return bytes;
}

}  // namespace intrawarp::server
