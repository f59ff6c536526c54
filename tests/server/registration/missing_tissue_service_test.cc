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
  static constexpr double kRadius = 20;
  static Vec3d HoleCentre() { return {-30, 0, 0}; }
  static Geometry BodyGrid() {
    Geometry g;
    g.size = {48, 48, 48};
    g.spacing = {4, 4, 4};
    g.origin = {-94, -94, -94};
    return g;
  }
  // A body of 85 mm radius with a brighter organ; as the fixed image it has a hole.
  void PutBody(const std::string& id, bool has_hole) {
    const AffineMap to_point = IndexToPhysical(BodyGrid());
    const auto distance = [](Vec3d a, Vec3d b) { return std::sqrt(Dot(a - b, a - b)); };
    std::vector<float> voxels;
    for (int64_t i = 0; i < BodyGrid().voxels(); ++i) {
      const Vec3d p = to_point({double(i % 48), double(i / 48 % 48), double(i / 48 / 48)});
      const double texture = 12 * std::sin(p.x / 5) * std::sin(p.y / 6 + 1) * std::sin(p.z / 7);
      double value = distance(p, {}) > 85 ? 0 : distance(p, {35, 10, 0}) < 30 ? 180 + texture : 100 + texture;
      if (has_hole && distance(p, HoleCentre()) < kRadius) value = 30;
      voxels.push_back(static_cast<float>(value));
    }
    PutVolume(id, BodyGrid(), voxels);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MissingTissueServiceTest);

TEST_P(MissingTissueServiceTest, AReportSaysWhereTissueIsMissing) {
  PutBody("fixed", true);
  PutBody("moving", false);
  v1::RegisterRequest request = AffineThen(StageKind::kFfd);
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
  const double sphere = 4.0 / 3 * M_PI * kRadius * kRadius * kRadius;
  EXPECT_NEAR(tissue.volume_mm3(), sphere, 0.4 * sphere);
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
