// SPDX-License-Identifier: Apache-2.0
// Other clients keep every worker thread busy with uploads that are hashed, checked and prepared.
#include <atomic>
#include <thread>

#include "intrawarp/v1/volume.grpc.pb.h"
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

using BusyWorkersTest = InterferenceTest;

TEST_F(BusyWorkersTest, LeaveFramesAlone) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  const Geometry grid = BoxGeometry(96, 96, 96);
  std::atomic<bool> stop = false;
  std::atomic<int> uploads = 0;
  const auto upload = [&](int thread) {
    auto channel = NavigationClient::OwnChannel(address());
    auto bulk = v1::BulkService::NewStub(channel);
    auto volumes = v1::VolumeService::NewStub(channel);
    UploadData volume = MakeVolume(grid, RandomVoxels<uint8_t>(grid, thread), "", absl::StrCat("busy-", thread));
    for (int n = 0; !stop; ++n) {
      volume.header.set_upload_id(absl::StrCat("busy-", thread, "-", n));
      if (Upload(*bulk, volume, nullptr, size_t{1} << 18).ok()) ++uploads;
      grpc::ClientContext context;
      v1::DeleteVolumeRequest request;
      v1::DeleteVolumeResponse response;
      request.set_name(absl::StrCat("volumes/busy-", thread));
      volumes->DeleteVolume(&context, request, &response);
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) threads.emplace_back(upload, thread);
  while (uploads < 6) std::this_thread::yield();
  ExpectFrames("in an open session", client, 20);
  ExpectNewSession("in a new session");
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace intrawarp::server
