// SPDX-License-Identifier: Apache-2.0
// Uploads a volume of one voxel to the server at argv[1] and prints its name.
#include <cstdio>

#include "client/cpp/client.h"

int main(int, char** argv) {
  auto client = intrawarp::client::Client::Connect(argv[1]);
  const float voxel = 7;
  const intrawarp::client::VolumeUpload upload{.id = "one-voxel",
                                               .bytes = {reinterpret_cast<const char*>(&voxel), sizeof(voxel)}};
  auto answer = client.ok() ? (*client)->UploadVolume(upload) : client.status();
  std::puts(answer.ok() ? answer->volume().name().c_str() : answer.status().ToString().c_str());
  return answer.ok() ? 0 : 1;
}
