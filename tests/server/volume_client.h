// SPDX-License-Identifier: Apache-2.0
// What tests do with volumes over the wire.
#ifndef INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "intrawarp/v1/volume.grpc.pb.h"
#include "io/digest.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {

template <typename T>
constexpr v1::PixelType PixelTypeOf() {
  if constexpr (std::is_same_v<T, uint8_t>) return v1::PIXEL_TYPE_UINT8;
  if constexpr (std::is_same_v<T, int8_t>) return v1::PIXEL_TYPE_INT8;
  if constexpr (std::is_same_v<T, uint16_t>) return v1::PIXEL_TYPE_UINT16;
  if constexpr (std::is_same_v<T, int16_t>) return v1::PIXEL_TYPE_INT16;
  if constexpr (std::is_same_v<T, uint32_t>) return v1::PIXEL_TYPE_UINT32;
  if constexpr (std::is_same_v<T, int32_t>) return v1::PIXEL_TYPE_INT32;
  if constexpr (std::is_same_v<T, float>) return v1::PIXEL_TYPE_FLOAT32;
  return v1::PIXEL_TYPE_FLOAT64;
}

inline Geometry BoxGeometry(int x, int y, int z) {
  Geometry geometry;
  geometry.size = {x, y, z};
  geometry.spacing = {1, 1.5, 2};
  geometry.origin = {-3, 4, 5};
  return geometry;
}

// Whole numbers from 0 to 100, which every pixel type holds.
template <typename T>
std::vector<T> RandomVoxels(const Geometry& geometry, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> voxels(geometry.voxels());
  for (T& voxel : voxels) voxel = static_cast<T>(random() % 101);
  return voxels;
}

// A volume to upload; tests spoil its header.
struct VolumeData {
  v1::UploadVolumeHeader header;
  std::string bytes;
};

template <typename T>
VolumeData MakeVolume(const Geometry& geometry, const std::vector<T>& voxels, const std::string& upload_id,
                      const std::string& id = "") {
  VolumeData volume;
  volume.bytes.assign(reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(T));
  volume.header.set_id(id);
  volume.header.set_upload_id(upload_id);
  *volume.header.mutable_geometry() = GeometryToProto(geometry);
  volume.header.set_pixel_type(PixelTypeOf<T>());
  volume.header.set_total_bytes(volume.bytes.size());
  volume.header.set_digest(io::Sha256Of(volume.bytes.data(), volume.bytes.size()));
  return volume;
}

// An UploadVolume call, message by message.
class UploadCall {
 public:
  explicit UploadCall(v1::VolumeService::Stub& stub, std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    writer_ = stub.UploadVolume(&context_, &response_);
  }
  bool SendHeader(const v1::UploadVolumeHeader& header) {
    v1::UploadVolumeRequest request;
    *request.mutable_header() = header;
    return writer_->Write(request);
  }
  bool SendChunk(int64_t offset, const std::string& data) {
    v1::UploadVolumeRequest request;
    request.mutable_chunk()->set_offset(offset);
    request.mutable_chunk()->set_data(data);
    return writer_->Write(request);
  }
  // [begin, end) in chunks.
  bool SendBytes(const std::string& bytes, size_t begin, size_t end, size_t chunk) {
    for (size_t at = begin; at < end; at += chunk) {
      if (!SendChunk(at, bytes.substr(at, std::min(chunk, end - at)))) return false;
    }
    return true;
  }
  bool Send(const v1::UploadVolumeRequest& request) { return writer_->Write(request); }
  grpc::Status Finish() {
    writer_->WritesDone();
    return writer_->Finish();
  }
  // Without ending the stream of requests.
  grpc::Status Await() { return writer_->Finish(); }
  void Cancel() {
    context_.TryCancel();
    writer_->Finish();
  }
  const v1::UploadVolumeResponse& response() const { return response_; }

 private:
  grpc::ClientContext context_;
  v1::UploadVolumeResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadVolumeRequest>> writer_;
};

inline grpc::Status Upload(v1::VolumeService::Stub& stub, const VolumeData& volume,
                           v1::UploadVolumeResponse* response = nullptr, size_t chunk = 1000) {
  UploadCall call(stub);
  call.SendHeader(volume.header);
  call.SendBytes(volume.bytes, 0, volume.bytes.size(), chunk);
  const grpc::Status status = call.Finish();
  if (response != nullptr) *response = call.response();
  return status;
}

struct DownloadedVolume {
  grpc::Status status;
  v1::DownloadVolumeHeader header;
  std::vector<float> voxels;
  int chunks = 0;
};

// Checks on the way that there is one header and that chunks come in order.
inline DownloadedVolume Download(v1::VolumeService::Stub& stub, const std::string& name) {
  DownloadedVolume volume;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::DownloadVolumeRequest request;
  request.set_name(name);
  auto reader = stub.DownloadVolume(&context, request);
  v1::DownloadVolumeResponse response;
  std::string bytes;
  while (reader->Read(&response)) {
    if (response.has_header()) {
      EXPECT_EQ(volume.header.total_bytes(), 0);
      volume.header = response.header();
      continue;
    }
    ++volume.chunks;
    EXPECT_EQ(response.chunk().offset(), static_cast<int64_t>(bytes.size()));
    bytes += response.chunk().data();
  }
  volume.status = reader->Finish();
  if (volume.status.ok()) {
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), volume.header.total_bytes());
  }
  volume.voxels.resize(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(volume.voxels.data(), bytes.data(), volume.voxels.size() * sizeof(float));
  return volume;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_
