// SPDX-License-Identifier: Apache-2.0
#include "tests/server/volume_client.h"

#include <cstring>

namespace intrawarp::server {

Geometry BoxGeometry(int x, int y, int z) {
  Geometry geometry;
  geometry.size = {x, y, z};
  geometry.spacing = {1, 1.5, 2};
  geometry.origin = {-3, 4, 5};
  return geometry;
}

DownloadedVolume Download(v1::BulkService::Stub& stub, const std::string& name) {
  v1::DownloadRequest request;
  request.set_name(name);
  DownloadedBytes bytes = DownloadBytes(stub, request);
  DownloadedVolume volume{bytes.status, bytes.header, {}, bytes.chunks};
  volume.voxels.resize(bytes.bytes.size() / sizeof(float));
  if (!bytes.bytes.empty()) std::memcpy(volume.voxels.data(), bytes.bytes.data(), volume.voxels.size() * sizeof(float));
  return volume;
}

}  // namespace intrawarp::server
