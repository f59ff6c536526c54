// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/tracking.h"

#include <algorithm>
#include <cmath>

#include "client/igtl/codec/bytes.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

constexpr size_t kTransformBytes = 48;
constexpr size_t kToolNameBytes = 20;
constexpr size_t kToolBytes = kToolNameBytes + 2 + kTransformBytes;
constexpr size_t kCoordinateNameBytes = 32;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

absl::StatusOr<AffineMap> ReadMatrix(ByteReader& in, absl::string_view field) {
  AffineMap pose;
  for (int column = 0; column < 4; ++column) {
    for (auto& row : pose.m) {
      row[column] = in.Float();
      if (!std::isfinite(row[column])) return Invalid(field, "holds a number that is not finite");
    }
  }
  return pose;
}

void WriteMatrix(ByteWriter& out, const AffineMap& pose) {
  for (int column = 0; column < 4; ++column) {
    for (const auto& row : pose.m) out.Float(static_cast<float>(row[column]));
  }
}

// x, y, z, w of a rotation, by its largest component (Shepperd, 1978).
void QuaternionOf(const AffineMap& pose, double q[4]) {
  const auto& r = pose.m;
  const double squares[4] = {1 + r[0][0] - r[1][1] - r[2][2], 1 - r[0][0] + r[1][1] - r[2][2],
                             1 - r[0][0] - r[1][1] + r[2][2], 1 + r[0][0] + r[1][1] + r[2][2]};
  const auto largest = static_cast<int>(std::max_element(squares, squares + 4) - squares);
  const double s = 0.5 / std::sqrt(std::max(squares[largest], 1e-12));
  q[largest] = 0.5 * std::sqrt(std::max(squares[largest], 0.0));
  if (largest == 3) {
    for (int i = 0; i < 3; ++i) q[i] = s * (r[(i + 2) % 3][(i + 1) % 3] - r[(i + 1) % 3][(i + 2) % 3]);
    return;
  }
  const int i = largest, j = (i + 1) % 3, k = (i + 2) % 3;
  q[j] = s * (r[i][j] + r[j][i]);
  q[k] = s * (r[i][k] + r[k][i]);
  q[3] = s * (r[k][j] - r[j][k]);
}

}  // namespace

absl::StatusOr<AffineMap> ParseTransform(absl::string_view content) {
  if (content.size() != kTransformBytes) return Invalid("transform", "must have 48 bytes");
  ByteReader in(content);
  return ReadMatrix(in, "transform");
}

absl::StatusOr<AffineMap> ParsePosition(absl::string_view content) {
  if (content.size() != 12 && content.size() != 24 && content.size() != 28) {
    return Invalid("position", "must have 12, 24 or 28 bytes");
  }
  ByteReader in(content);
  double n[7] = {0, 0, 0, 0, 0, 0, 1};
  for (size_t i = 0; i < content.size() / 4; ++i) {
    n[i] = in.Float();
    if (!std::isfinite(n[i])) return Invalid("position", "holds a number that is not finite");
  }
  double x = n[3], y = n[4], z = n[5], w = n[6];
  if (content.size() == 24) w = std::sqrt(std::max(0.0, 1 - x * x - y * y - z * z));
  const double length = std::sqrt(x * x + y * y + z * z + w * w);
  if (!(length > 1e-6)) return Invalid("position.quaternion", "has no length");
  x /= length, y /= length, z /= length, w /= length;
  AffineMap pose;
  const double r[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)},
                          {2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)},
                          {2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)}};
  for (int row = 0; row < 3; ++row) {
    std::copy(r[row], r[row] + 3, pose.m[row]);
    pose.m[row][3] = n[row];
  }
  return pose;
}

absl::StatusOr<std::vector<TrackedTool>> ParseTrackingData(absl::string_view content) {
  if (content.size() % kToolBytes != 0) return Invalid("tdata", "must have 70 bytes for each tool");
  ByteReader in(content);
  std::vector<TrackedTool> tools;
  tools.reserve(content.size() / kToolBytes);
  while (in.remaining() > 0) {
    TrackedTool tool;
    tool.name = in.Text(kToolNameBytes);
    tool.type = in.Uint8();
    (void)in.Uint8();
    INTRAWARP_ASSIGN_OR_RETURN(tool.pose, ReadMatrix(in, "tdata"));
    tools.push_back(std::move(tool));
  }
  return tools;
}

std::string PackTransform(const AffineMap& pose) {
  ByteWriter out;
  WriteMatrix(out, pose);
  return out.Take();
}

std::string PackPosition(const AffineMap& pose) {
  double q[4];
  QuaternionOf(pose, q);
  ByteWriter out;
  for (const auto& row : pose.m) out.Float(static_cast<float>(row[3]));
  for (const double each : q) out.Float(static_cast<float>(each));
  return out.Take();
}

std::string PackTrackingData(absl::Span<const TrackedTool> tools) {
  ByteWriter out;
  for (const TrackedTool& tool : tools) {
    out.Text(tool.name, kToolNameBytes);
    out.Uint8(tool.type);
    out.Uint8(0);
    WriteMatrix(out, tool.pose);
  }
  return out.Take();
}

std::string PackTrackingRequest(int interval_ms) {
  ByteWriter out;
  out.Uint32(static_cast<uint32_t>(interval_ms));
  out.Text("", kCoordinateNameBytes);
  return out.Take();
}

AffineMap FlipPose(const AffineMap& pose) {
  AffineMap flipped = pose;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) {
      if ((row < 2) != (column < 2)) flipped.m[row][column] = -flipped.m[row][column];
    }
  }
  return flipped;
}

}  // namespace intrawarp::igtl
