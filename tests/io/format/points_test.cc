// SPDX-License-Identifier: Apache-2.0
#include "io/format/points.h"

#include <limits>

#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using PointsTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST_F(PointsTest, WrittenPointsReadBackExactly) {
  const std::vector<Vec3d> points = {{0.1, -1.0 / 3, 1e-300}, {1e17, -0.0, 123456.789}, {5, 6, 7}};
  ASSERT_THAT(WritePoints(Path("p.csv"), points), Succeeds());
  const auto read = ReadPoints(Path("p.csv"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(*read, points);
}

TEST_F(PointsTest, AcceptsWhatSpreadsheetsWrite) {
  const auto points = ParsePoints("\xef\xbb\xbfX, Y ,Z\r\n 1.5,\t-2 ,+3e1\r\n4,5,6\r\n\r\n");
  ASSERT_THAT(points, Succeeds());
  EXPECT_EQ(*points, (std::vector<Vec3d>{{1.5, -2, 30}, {4, 5, 6}}));
  EXPECT_EQ(ParsePoints("x,y,z")->size(), 0u);
}

TEST_F(PointsTest, ErrorsNameTheLine) {
  EXPECT_THAT(ParsePoints(""), Fails(kInvalid, "line 1: the header"));
  EXPECT_THAT(ParsePoints("1,2,3\n"), Fails(kInvalid, "line 1: the header"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,2,3\n1,2\n"), Fails(kInvalid, "line 3: must have 3 numbers"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,2,3,4\n"), Fails(kInvalid, "line 2: must have 3 numbers"));
  EXPECT_THAT(ParsePoints("x,y,z\n\n1,2,3\n"), Fails(kInvalid, "line 2: must have 3 numbers"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,,3\n"), Fails(kInvalid, "line 2: y is not a number"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,2,3mm\n"), Fails(kInvalid, "line 2: z is not a number"));
  EXPECT_THAT(ParsePoints("x,y,z\nnan,2,3\n"), Fails(kInvalid, "line 2: x is not finite"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,-inf,3\n"), Fails(kInvalid, "line 2: y is not finite"));
  EXPECT_THAT(ParsePoints("x,y,z\n1,2,+-3\n"), Fails(kInvalid, "line 2: z is not a number"));
}

TEST_F(PointsTest, LandmarksWithAndWithoutSigma) {
  const std::string header = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z";
  const auto plain = ParseLandmarks(header + "\n1,2,3,4,5,6\n");
  ASSERT_THAT(plain, Succeeds());
  ASSERT_EQ(plain->size(), 1u);
  EXPECT_EQ((*plain)[0].fixed, (Vec3d{1, 2, 3}));
  EXPECT_EQ((*plain)[0].moving, (Vec3d{4, 5, 6}));
  EXPECT_FALSE((*plain)[0].sigma_mm.has_value());
  const auto sure = ParseLandmarks(header + ", Sigma_mm\r\n1,2,3,4,5,6,2.5\r\n-1,0,0,0,0,1,.5\r\n");
  ASSERT_THAT(sure, Succeeds());
  ASSERT_EQ(sure->size(), 2u);
  EXPECT_EQ((*sure)[0].sigma_mm, 2.5);
  EXPECT_EQ((*sure)[1].sigma_mm, 0.5);
  EXPECT_THAT(ParseLandmarks("x,y,z\n1,2,3\n"), Fails(kInvalid, "line 1: the header must be fixed_x"));
  EXPECT_THAT(ParseLandmarks(header + "\n1,2,3\n"), Fails(kInvalid, "line 2: must have 6 numbers"));
  EXPECT_THAT(ParseLandmarks(header + ",sigma_mm\n1,2,3,4,5,6\n"), Fails(kInvalid, "line 2: must have 7 numbers"));
  EXPECT_THAT(ParseLandmarks(header + "\n1,2,3,4,x,6\n"), Fails(kInvalid, "line 2: moving_y is not a number"));
  EXPECT_THAT(ParsePoints(header + "\n1,2,3,4,5,6\n"), Fails(kInvalid, "line 1: the header must be x,y,z"));
}

TEST_F(PointsTest, FilesThatAreNotThere) {
  EXPECT_THAT(ReadPoints(Path("none.csv")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(WritePoints(Path("no/such/folder.csv"), {}), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadPoints(folder_.string()), Fails(kInvalid, "file: not a regular file"));
  EXPECT_THAT(WritePoints("/dev/full", {{1, 2, 3}}), Fails(absl::StatusCode::kResourceExhausted, "file: "));
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST_F(PointsTest, ReadsLandmarksOfTheLiverPairs) {
  const auto fixed = TestData("reg3d/liver_4dmri_eth/dataset18/exhMaster_landmarks_liver.csv");
  if (!fixed) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  const auto points = ReadPoints(*fixed);
  ASSERT_THAT(points, Succeeds());
  EXPECT_GT(points->size(), 10u);
  EXPECT_EQ((*points)[0], (Vec3d{75.7609, 159.0690, 84.0}));
}

}  // namespace
}  // namespace intrawarp::io
