// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/grid_receiver.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/cpp/half_float.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::client {

static_assert(std::endian::native == std::endian::little, "floats travel little-endian and are not swapped");

namespace {

// Fresh memory comes in pages of 2 MiB where the system has them: a field takes 100 page faults then, not 50000.
void PreferLargePages(const void* data, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  // Advice: what it answers does not matter.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

template <typename T, typename ToFloat>
void Decode(const char* encoded, const ToFloat& to_float, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T number;
    std::memcpy(&number, encoded + i * sizeof(T), sizeof(T));
    out[i] = to_float(number);
  }
}

// Bytes of a number. INTERNAL for an encoding that the server cannot mean.
absl::StatusOr<int64_t> ValueBytes(const v1::FieldHeader& header) {
  switch (header.encoding()) {
    case v1::FIELD_ENCODING_FLOAT32:
    case v1::FIELD_ENCODING_CONTROL_POINTS:
    case v1::FIELD_ENCODING_VELOCITY:
      return sizeof(float);
    case v1::FIELD_ENCODING_INT16:
      if (header.scale() > 0 && std::isfinite(static_cast<float>(header.scale()))) return sizeof(int16_t);
      return absl::InternalError("the server sent a field in INT16 without a scale");
    case v1::FIELD_ENCODING_FLOAT16:
      return sizeof(uint16_t);
    default:
      return absl::InternalError(absl::StrCat("the server sent a field in encoding ", header.encoding()));
  }
}

// The grid of `components` numbers a voxel that `total_bytes` are for.
absl::StatusOr<Geometry> CheckGrid(const v1::Geometry& proto, int64_t total_bytes, int components,
                                   int64_t value_bytes) {
  absl::StatusOr<Geometry> geometry = GeometryFromProto(proto);
  if (!geometry.ok()) return absl::InternalError(absl::StrCat("header of the server: ", geometry.status().message()));
  // kMaxAxis bounds the product far below an overflow.
  const int64_t values = geometry->voxels() * components;
  if (total_bytes == values * value_bytes) return geometry;
  return absl::InternalError(absl::StrCat("the server announced ", total_bytes, " bytes for ", SizeString(*geometry),
                                          " voxels of ", components, " numbers of ", value_bytes, " bytes"));
}

absl::Status SecondHeader() { return absl::InternalError("the server sent a second header"); }

}  // namespace

GridSink SinkInto(GridData* data) {
  return [data](const Geometry& geometry, int64_t values) -> absl::StatusOr<absl::Span<float>> {
    const auto size = static_cast<size_t>(values);
    data->geometry = geometry;
    data->values.reserve(size);
    PreferLargePages(data->values.data(), size * sizeof(float));
    data->values.resize(size);
    return absl::MakeSpan(data->values);
  };
}

absl::Status CheckFieldHeader(const v1::FieldHeader& header) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t value_bytes, ValueBytes(header));
  return CheckGrid(header.geometry(), header.total_bytes(), 3, value_bytes).status();
}

absl::Status GridReceiver::Begin(const v1::FieldHeader& header) {
  if (begun()) return SecondHeader();
  INTRAWARP_ASSIGN_OR_RETURN(value_bytes_, ValueBytes(header));
  encoding_ = header.encoding();
  scale_ = static_cast<float>(header.scale());
  return Begin(header.geometry(), header.total_bytes());
}

absl::Status GridReceiver::Begin(const v1::Geometry& proto, int64_t total_bytes) {
  if (begun()) return SecondHeader();
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry geometry, CheckGrid(proto, total_bytes, components_, value_bytes_));
  const int64_t values = geometry.voxels() * components_;
  if (const int64_t bytes = values * static_cast<int64_t>(sizeof(float)); bytes > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", bytes, " bytes, more than the client's limit of ", max_bytes_));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<float> floats, sink_(geometry, values));
  if (floats.size() != static_cast<size_t>(values)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "sink",
                      absl::StrCat("memory for ", floats.size(), " floats instead of ", values));
  }
  floats_ = floats;
  if (value_bytes_ == sizeof(float)) {
    bytes_.Begin({absl::MakeSpan(reinterpret_cast<char*>(floats.data()), floats.size() * sizeof(float))});
  } else {
    bytes_.Begin(total_bytes);
  }
  return absl::OkStatus();
}

absl::Status GridReceiver::Append(const wire::ReceivedChunk& chunk) {
  return value_bytes_ == sizeof(float) ? bytes_.Append(chunk) : AppendEncoded(chunk);
}

void GridReceiver::DecodeInto(absl::Span<float> out, const char* encoded) const {
  if (encoding_ == v1::FIELD_ENCODING_FLOAT16) {
    Decode<uint16_t>(
        encoded, [](uint16_t number) { return FloatOfHalf(number); }, out);
  }
  if (encoding_ == v1::FIELD_ENCODING_INT16) {
    const auto scaled = [scale = scale_](int16_t number) { return scale * static_cast<float>(number); };
    Decode<int16_t>(encoded, scaled, out);
  }
}

absl::Status GridReceiver::TakeWhole(absl::Span<const char> bytes) {
  if (!begun() || bytes.size() != floats_.size() * static_cast<size_t>(value_bytes_)) {
    return absl::InternalError("the server sent a field of another size than it announced");
  }
  if (value_bytes_ == sizeof(float)) {
    std::memcpy(floats_.data(), bytes.data(), bytes.size());
  } else {
    DecodeInto(floats_, bytes.data());
  }
  is_whole_ = true;
  return absl::OkStatus();
}

absl::Status GridReceiver::AppendEncoded(const wire::ReceivedChunk& chunk) {
  const auto size = static_cast<size_t>(chunk.size());
  INTRAWARP_RETURN_IF_ERROR(bytes_.Take(chunk, [&] {
    encoded_.resize(std::max(encoded_.size(), left_over_ + size));
    return encoded_.data() + left_over_;
  }));
  const size_t bytes = left_over_ + size;
  const absl::Span<float> out = floats_.subspan(decoded_, bytes / sizeof(int16_t));
  DecodeInto(out, encoded_.data());
  decoded_ += out.size();
  left_over_ = bytes % sizeof(int16_t);
  if (left_over_ != 0) encoded_[0] = encoded_[bytes - 1];
  return absl::OkStatus();
}

}  // namespace intrawarp::client
