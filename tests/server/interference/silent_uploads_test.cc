// SPDX-License-Identifier: Apache-2.0
// Another client announces uploads and sends nothing of them.
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

class SilentUploadsTest : public InterferenceTest {
 protected:
  explicit SilentUploadsTest(const ServerOptions& options = SmallServer()) : InterferenceTest(options) {}

  // Headers of volumes on the grid, one stream each, of which the server may refuse some; they stay open and silent.
  void Announce(const Geometry& grid, int uploads) {
    const UploadData volume = MakeVolume(grid, RandomVoxels<uint8_t>(grid, 1), "", "");
    if (bulk_ == nullptr) bulk_ = v1::BulkService::NewStub(NavigationClient::OwnChannel(address()));
    for (int n = 0; n < uploads; ++n) {
      v1::UploadHeader header = volume.header;
      header.set_upload_id(absl::StrCat("silent-", silent_.size()));
      silent_.push_back(std::make_unique<UploadCall>(*bulk_, std::chrono::minutes(4)));
      if (!silent_.back()->SendHeader(header)) continue;
      // A first byte, without which the server may not have looked at the memory yet.
      silent_.back()->SendChunk(0, volume.bytes.substr(0, 1));
    }
    AwaitUsage("the uploads are open", [&](const v1::Usage& usage) { return usage.uploads() > 0; });
  }

  // As much as fits, the large ones first.
  void AnnounceAll() {
    Announce(BoxGeometry(160, 160, 160), 12);
    Announce(BoxGeometry(48, 48, 48), 30);
    Announce(BoxGeometry(16, 16, 16), 12);
  }

  std::unique_ptr<v1::BulkService::Stub> bulk_;
  std::vector<std::unique_ptr<UploadCall>> silent_;
};

TEST_F(SilentUploadsTest, DoNotTakeTheFramesResidentMemory) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  AnnounceAll();
  ExpectFrames("in an open session", client, 20);
  ExpectNewSession("in a new session");
}

class MuchResidentMemoryTest : public SilentUploadsTest {
 protected:
  static ServerOptions MuchResidentMemory() {
    ServerOptions options = SmallServer();
    options.limits.resident_capacity_bytes = int64_t{1} << 30;
    return options;
  }
  MuchResidentMemoryTest() : SilentUploadsTest(MuchResidentMemory()) {}
};

TEST_F(MuchResidentMemoryTest, SilentUploadsDoNotTakeTheFramesPinnedMemory) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  AnnounceAll();
  ExpectFrames("in an open session", client, 20);
  ExpectNewSession("in a new session");
}

class FewStreamsTest : public SilentUploadsTest {
 protected:
  static ServerOptions FewStreams() {
    ServerOptions options = SmallServer();
    options.limits.max_streams = 8;
    return options;
  }
  FewStreamsTest() : SilentUploadsTest(FewStreams()) {}
};

TEST_F(FewStreamsTest, SilentUploadsLeaveASessionItsPlace) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  Announce(BoxGeometry(8, 8, 8), 16);
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
