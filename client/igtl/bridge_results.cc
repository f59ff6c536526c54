// SPDX-License-Identifier: Apache-2.0
// Results of the server as messages.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/rpc_status.h"
#include "client/igtl/bridge.h"
#include "client/igtl/codec/image.h"
#include "client/igtl/codec/tracking.h"
#include "wire/convert.h"

namespace intrawarp::igtl {
namespace {

absl::string_view BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

OutMessage Bridge::Pack(const std::string& type, const std::string& device, uint64_t timestamp, absl::string_view head,
                        absl::string_view rest, Metadata metadata) const {
  const Envelope envelope = {options_.header_version, type, device, timestamp, 0, std::move(metadata)};
  return {absl::StrCat(type, "/", device), std::make_shared<const std::string>(PackMessage(envelope, {head, rest}))};
}

void Bridge::Broadcast(const std::string& type, const std::string& device, uint64_t timestamp, absl::string_view head,
                       absl::string_view rest, Metadata metadata) {
  loop_->Broadcast(Pack(type, device, timestamp, head, rest, std::move(metadata)));
}

Metadata Bridge::Describe(const Snapshot& snapshot, Clock::time_point now) const {
  Metadata metadata = {{"verdict", snapshot.is_ok ? "ok" : "review"},
                       {"frame", absl::StrCat(snapshot.frame_number)},
                       {"age_ms", absl::StrCat(snapshot.age_ms(now))}};
  if (snapshot.error) {
    metadata.emplace_back("expected_mm", absl::StrFormat("%.2f", snapshot.error->expected_mm));
    metadata.emplace_back("bound_mm", absl::StrFormat("%.2f", snapshot.error->bound_mm));
  }
  return metadata;
}

void Bridge::TakeResult(const FrameOutcome& outcome) {
  const absl::Status answered = client::FromRpcStatus(outcome.answer.result.status());
  absl::StatusOr<std::shared_ptr<const Snapshot>> snapshot =
      answered.ok() ? SnapshotOf(outcome) : absl::StatusOr<std::shared_ptr<const Snapshot>>(answered);
  if (!snapshot.ok()) {
    counters_.Lose(Lost::kServer);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome.answer.is_superseded()) last_failure_ = absl::StatusCodeToString(snapshot.status().code());
    return;
  }
  ++((*snapshot)->is_ok ? counters_.results_ok : counters_.results_review);
  const bool is_used = (*snapshot)->is_ok || options_.uses_review;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last_result_ = *snapshot;
    last_failure_.clear();
    if (is_used) newest_ = *snapshot;
  }
  if (!is_used) return;
  SendField(outcome, **snapshot);
  if (options_.sends_warped) SendWarped(outcome, **snapshot);
}

void Bridge::SendField(const FrameOutcome& outcome, const Snapshot& snapshot) {
  const Metadata metadata = Describe(snapshot, Clock::now());
  const bool is_ras = options_.coordinates == Coordinates::kRas;
  const AffineMap& affine = snapshot.map->affine();
  Broadcast("TRANSFORM", absl::StrCat(options_.device_prefix, "Affine"), snapshot.timestamp,
            PackTransform(is_ras ? FlipPose(affine) : affine), {}, metadata);
  if (!options_.sends_field) return;
  std::vector<float> vectors = outcome.field.values;
  if (is_ras) {
    for (size_t at = 0; at + 2 < vectors.size(); at += 3) {
      vectors[at] = -vectors[at];
      vectors[at + 1] = -vectors[at + 1];
    }
  }
  Metadata described = metadata;
  described.emplace_back("vectors", is_ras ? "RAS mm" : "LPS mm");
  described.emplace_back("direction", "fixed to moving");
  const ImageHeader header = HeaderOfGeometry(outcome.field.geometry, options_.coordinates, PixelType::kFloat32, 3);
  Broadcast("IMAGE", absl::StrCat(options_.device_prefix, "Field"), snapshot.timestamp, PackImageHeader(header),
            BytesOf(vectors), std::move(described));
}

void Bridge::SendWarped(const FrameOutcome& outcome, const Snapshot& snapshot) {
  v1::WarpVolumeRequest request;
  request.set_transform(outcome.answer.result.transform());
  request.set_moving(outcome.volume);
  *request.mutable_like_geometry() = GeometryToProto(outcome.domain);
  client::GridData warped;
  client::CallOptions call;
  call.timeout = std::chrono::seconds(10);
  if (!outcome.client->WarpVolume(request, client::SinkInto(&warped), call).ok()) {
    return counters_.Lose(Lost::kServer);
  }
  const ImageHeader header = HeaderOfGeometry(warped.geometry, options_.coordinates, PixelType::kFloat32, 1);
  Broadcast("IMAGE", absl::StrCat(options_.device_prefix, "Warped"), snapshot.timestamp, PackImageHeader(header),
            BytesOf(warped.values), Describe(snapshot, Clock::now()));
}

}  // namespace intrawarp::igtl
