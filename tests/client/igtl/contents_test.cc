// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "client/igtl/codec/bytes.h"
#include "client/igtl/codec/points.h"
#include "client/igtl/codec/text.h"
#include "client/igtl/codec/tracking.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

AffineMap SomePose() {
  AffineMap pose;
  const double s = std::sin(0.7), c = std::cos(0.7);
  pose.m[0][0] = c, pose.m[0][1] = -s;
  pose.m[1][0] = s, pose.m[1][1] = c;
  pose.m[2][2] = 1;
  pose.m[0][3] = 10, pose.m[1][3] = -20, pose.m[2][3] = 30.5;
  return pose;
}

void ExpectNear(const AffineMap& a, const AffineMap& b) {
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) EXPECT_NEAR(a.m[row][column], b.m[row][column], 1e-5);
  }
}

TEST(Tracking, PosesComeBack) {
  const AffineMap pose = SomePose();
  ExpectNear(*ParseTransform(PackTransform(pose)), pose);
  ExpectNear(*ParsePosition(PackPosition(pose)), pose);
  const std::string all = PackTrackingData({{"Stylus", 3, pose}, {"Probe", 2, AffineMap::Identity()}});
  EXPECT_EQ(all.size(), 140u);
  const auto tools = ParseTrackingData(all);
  ASSERT_TRUE(tools.ok());
  ASSERT_EQ(tools->size(), 2u);
  EXPECT_EQ((*tools)[0].name, "Stylus");
  EXPECT_EQ((*tools)[0].type, 3);
  ExpectNear((*tools)[0].pose, pose);
  EXPECT_TRUE(ParseTrackingData("")->empty());
}

TEST(Tracking, QuaternionsOfEveryLargestComponent) {
  // Half a turn about each axis has w = 0.
  for (int axis = 0; axis < 3; ++axis) {
    AffineMap pose;
    for (int i = 0; i < 3; ++i) pose.m[i][i] = i == axis ? 1 : -1;
    ExpectNear(*ParsePosition(PackPosition(pose)), pose);
  }
}

TEST(Tracking, APositionMayHaveNoOrShortQuaternion) {
  const std::string whole = PackPosition(SomePose());
  ExpectNear(*ParsePosition(absl::string_view(whole).substr(0, 24)), SomePose());
  const auto point = ParsePosition(absl::string_view(whole).substr(0, 12));
  ASSERT_TRUE(point.ok());
  EXPECT_EQ(point->m[0][0], 1);
  EXPECT_EQ(point->m[2][3], 30.5);
}

TEST(Tracking, RefusesWhatIsNoPose) {
  EXPECT_EQ(FieldOf(ParseTransform("").status()), "transform");
  EXPECT_EQ(FieldOf(ParsePosition(std::string(13, '\0')).status()), "position");
  EXPECT_EQ(FieldOf(ParsePosition(std::string(28, '\0')).status()), "position.quaternion");
  EXPECT_EQ(FieldOf(ParseTrackingData(std::string(71, '\0')).status()), "tdata");
  AffineMap pose = SomePose();
  pose.m[1][3] = std::numeric_limits<double>::infinity();
  EXPECT_EQ(FieldOf(ParseTransform(PackTransform(pose)).status()), "transform");
}

TEST(Tracking, FlippingTwiceIsNothing) {
  const AffineMap flipped = FlipPose(SomePose());
  EXPECT_EQ(flipped.m[0][3], -10);
  EXPECT_EQ(flipped.m[1][3], 20);
  EXPECT_EQ(flipped.m[2][3], 30.5);
  ExpectNear(FlipPose(flipped), SomePose());
}

TEST(Points, ComeBack) {
  const NamedPoint point = {"Target", "Group", 0x11223344, {1, 2, 3}, 4, "Image"};
  const std::string content = PackPoints({point, point});
  EXPECT_EQ(content.size(), 2 * 136u);
  const auto points = ParsePoints(content);
  ASSERT_TRUE(points.ok());
  EXPECT_EQ((*points)[1].name, "Target");
  EXPECT_EQ((*points)[1].rgba, 0x11223344u);
  EXPECT_EQ((*points)[1].position, (Vec3d{1, 2, 3}));
  EXPECT_EQ((*points)[1].owner, "Image");
  EXPECT_EQ(FieldOf(ParsePoints("1").status()), "point");
}

TEST(Mesh, KeepsItsCellsAndAttributes) {
  ByteWriter out;
  for (const uint32_t count : {2u, 0u, 0u, 1u, 12u, 0u, 0u, 0u, 0u, 1u}) out.Uint32(count);
  for (int i = 0; i < 6; ++i) out.Float(static_cast<float>(i));
  for (const uint32_t line : {2u, 0u, 1u}) out.Uint32(line);
  out.Raw(std::string(20, 'a'));
  const std::string content = out.Take();
  auto mesh = ParseMesh(content);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  ASSERT_EQ(mesh->points.size(), 2u);
  EXPECT_EQ(mesh->points[1], (Vec3d{3, 4, 5}));
  EXPECT_EQ(PackMesh(*mesh), content);
  mesh->points[0] = {9, 9, 9};
  EXPECT_EQ(ParseMesh(PackMesh(*mesh))->points[0], (Vec3d{9, 9, 9}));
  EXPECT_EQ(ParseMesh(PackMesh(MeshOfPoints({{1, 2, 3}})))->points.size(), 1u);
}

TEST(Mesh, RefusesCountsBeyondTheMessage) {
  EXPECT_EQ(FieldOf(ParseMesh(std::string(39, '\0')).status()), "polydata");
  for (int i = 0; i < 10; ++i) {
    std::string counts(40, '\0');
    for (int b = 0; b < 4; ++b) counts[4 * i + b] = '\xff';
    const bool is_a_count_of_cells = i % 2 == 1 && i != 9;
    EXPECT_EQ(ParseMesh(counts).ok(), is_a_count_of_cells) << i;
  }
}

TEST(Text, ComesBack) {
  EXPECT_EQ(*ParseString(PackString("words")), "words");
  EXPECT_EQ(FieldOf(ParseString(std::string("\0\3\0\5word", 8)).status()), "string.length");
  for (const size_t name_bytes : {kCommandNameBytes, kOldCommandNameBytes}) {
    const std::string content = PackCommand({9, "Start", "<Command/>", name_bytes});
    const auto command = ParseCommand(content);
    ASSERT_TRUE(command.ok()) << command.status();
    EXPECT_EQ(command->id, 9u);
    EXPECT_EQ(command->name, "Start");
    EXPECT_EQ(command->text, "<Command/>");
    EXPECT_EQ(command->name_bytes, name_bytes);
    EXPECT_EQ(FieldOf(ParseCommand(content + "x").status()), "command.length");
  }
  const auto status = ParseStatus(PackStatus({StatusCode::kNotReady, -5, "NoField", "no field yet"}));
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->code, StatusCode::kNotReady);
  EXPECT_EQ(status->subcode, -5);
  EXPECT_EQ(status->error_name, "NoField");
  EXPECT_EQ(status->message, "no field yet");
  EXPECT_EQ(FieldOf(ParseStatus("short").status()), "status");
}

}  // namespace
}  // namespace intrawarp::igtl
