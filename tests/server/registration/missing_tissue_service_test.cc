// SPDX-License-Identifier: Apache-2.0
// Missing tissue over the wire: what a report says of it, and that nobody looks unless asked.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/server/deformed_pair.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

class MissingTissueServiceTest : public DeformedPairTest {
 protected:
  static bool IsMissing(const v1::MissingTissue& tissue, int64_t node) {
    return tissue.nodes().empty() ? false : (static_cast<uint8_t>(tissue.nodes()[node / 8]) >> node % 8 & 1) != 0;
  }
  static Vec3d HoleCentre() { return Center(FixedGrid()); }
  // The fixed image of PutPair with a hole of 12 mm radius.
  void PutPairWithHole() {
    PutPair();
    const AffineMap to_point = IndexToPhysical(FixedGrid());
    std::vector<float> fixed = Blobs(FixedGrid(), Center(FixedGrid()), kScale, AffineMap::Identity());
    const float most = *std::max_element(fixed.begin(), fixed.end());
    const Int3 n = FixedGrid().size;
    for (int64_t i = 0; i < FixedGrid().voxels(); ++i) {
      const Vec3d p = to_point({double(i % n.x), double(i / n.x % n.y), double(i / n.x / n.y)});
      if (std::sqrt(Dot(p - HoleCentre(), p - HoleCentre())) < 12) fixed[i] = 2 * most;
    }
    PutVolume("holed", FixedGrid(), fixed);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MissingTissueServiceTest);

TEST_P(MissingTissueServiceTest, AReportSaysWhereTissueIsMissing) {
  PutPairWithHole();
  v1::RegisterRequest request = AffineThen(StageKind::kFfd);
  request.set_fixed("volumes/holed");
  v1::RegistrationOptions& options = *request.mutable_options();
  for (int a = 0; a < 3; ++a) options.mutable_error()->add_points(HoleCentre()[a]);
  RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_FALSE(answer.result->report().has_missing_tissue());
  EXPECT_FALSE(answer.result->report().options().find_missing_tissue());

  options.set_find_missing_tissue(true);
  answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  EXPECT_TRUE(report.options().find_missing_tissue());
  ASSERT_TRUE(report.has_missing_tissue());
  const v1::MissingTissue& tissue = report.missing_tissue();
  const Geometry grid = *GeometryFromProto(tissue.geometry());
  ASSERT_EQ(tissue.nodes().size(), (grid.voxels() + 7) / 8);
  int64_t count = 0;
  for (int64_t node = 0; node < grid.voxels(); ++node) count += IsMissing(tissue, node);
  EXPECT_GT(count, 0);
  EXPECT_NEAR(tissue.volume_mm3(), count * grid.spacing.x * grid.spacing.y * grid.spacing.z,
              1e-6 * tissue.volume_mm3());
  EXPECT_NEAR(tissue.volume_mm3(), 4.0 / 3 * M_PI * 12 * 12 * 12, 3000);
  EXPECT_GT(tissue.fraction(), 0);
  ASSERT_EQ(report.error_at_size(), 1);
  EXPECT_TRUE(report.error_at(0).no_correspondence());
}

TEST_P(MissingTissueServiceTest, NothingIsMissingInWholeImages) {
  PutPair();
  v1::RegisterRequest request = AffineThen(StageKind::kFfd);
  request.mutable_options()->set_find_missing_tissue(true);
  const RegisterAnswer answer = Register(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_TRUE(answer.result->report().has_missing_tissue());
  EXPECT_EQ(answer.result->report().missing_tissue().nodes(), "");
  EXPECT_EQ(answer.result->report().missing_tissue().volume_mm3(), 0);
}

}  // namespace
}  // namespace intrawarp::server
