// SPDX-License-Identifier: Apache-2.0
// What tests do with volumes over the wire.
#ifndef INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/base/wire.h"
#include "tests/server/bulk_client.h"

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

Geometry BoxGeometry(int x, int y, int z);

// Whole numbers from 0 to 100, which every pixel type holds.
template <typename T>
std::vector<T> RandomVoxels(const Geometry& geometry, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> voxels(geometry.voxels());
  for (T& voxel : voxels) voxel = static_cast<T>(random() % 101);
  return voxels;
}

template <typename T>
UploadData MakeVolume(const Geometry& geometry, const std::vector<T>& voxels, const std::string& upload_id,
                      const std::string& id = "") {
  UploadData volume;
  volume.bytes.assign(reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(T));
  volume.header.set_id(id);
  volume.header.set_upload_id(upload_id);
  *volume.header.mutable_volume()->mutable_geometry() = GeometryToProto(geometry);
  volume.header.mutable_volume()->set_pixel_type(PixelTypeOf<T>());
  volume.Seal();
  return volume;
}

struct DownloadedVolume {
  grpc::Status status;
  v1::DownloadHeader header;
  std::vector<float> voxels;
  int chunks = 0;
};

DownloadedVolume Download(v1::BulkService::Stub& stub, const std::string& name);

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_VOLUME_CLIENT_H_
