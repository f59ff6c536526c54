// SPDX-License-Identifier: Apache-2.0
// Another client stores transforms until the server takes no more.
#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

class FullTransformTableTest : public InterferenceTest {
 protected:
  static ServerOptions FewTransforms() {
    ServerOptions options = SmallServer();
    options.limits.max_transforms = 40;
    return options;
  }
  FullTransformTableTest() : InterferenceTest(FewTransforms()) {}

  // Stores affine maps, which take no memory, until one is refused; how many were stored.
  int Fill() {
    auto bulk = test_.Stub<v1::BulkService>();
    for (int n = 0; n < 2 * FewTransforms().limits.max_transforms; ++n) {
      UploadData transform;
      transform.header.set_upload_id(absl::StrCat("fill-", n));
      *transform.header.mutable_transform()->mutable_affine() = AffineMapToProto(AffineMap::Identity());
      transform.header.set_id(absl::StrCat("t", n));
      transform.Seal();
      const grpc::Status status = Upload(*bulk, transform);
      if (status.ok()) continue;
      EXPECT_EQ(ReasonIn(status), "TOO_MANY_TRANSFORMS") << status.error_message();
      return n;
    }
    return -1;
  }
};

TEST_F(FullTransformTableTest, LeavesSessionsTheirPlaces) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  EXPECT_GT(Fill(), 0);
  ExpectFrames("in an open session", client, 20);
  ExpectNewSession("in a new session");
}

}  // namespace
}  // namespace intrawarp::server
