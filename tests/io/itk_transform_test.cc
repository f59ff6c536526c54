// SPDX-License-Identifier: Apache-2.0
#include "io/itk_transform.h"

#include "absl/strings/str_replace.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using ItkTransformTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

ControlGridFile SomeFile(Int3 size = {4, 5, 6}) {
  ControlGridFile file;
  file.affine.m[0][1] = 0.125;
  file.affine.m[2][3] = -7.5;
  file.grid = ObliqueGeometry(size, /*left_handed=*/true);
  file.coefficients = RandomFloats(3 * file.grid.voxels(), 5, -10, 10);
  return file;
}

TEST_F(ItkTransformTest, WrittenGridReadsBackExactly) {
  const ControlGridFile file = SomeFile();
  ASSERT_THAT(WriteItkTransform(Path("t.tfm"), file), Succeeds());
  const auto read = ReadItkTransform(Path("t.tfm"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_TRUE(read->grid == file.grid);
  EXPECT_EQ(read->coefficients, file.coefficients);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) EXPECT_EQ(read->affine.m[r][c], file.affine.m[r][c]);
}

// By hand, from ITK's documentation: the affine one first (it is applied last), components in planes.
TEST_F(ItkTransformTest, LaysOutWhatItkReads) {
  ControlGridFile file = SomeFile({4, 4, 4});
  file.affine = AffineMap::Identity();
  for (size_t i = 0; i < file.coefficients.size(); ++i) file.coefficients[i] = static_cast<float>(i % 3);
  const std::string text = FormatItkTransform(file);
  EXPECT_EQ(text.find("#Insight Transform File V1.0\n#Transform 0\nTransform: CompositeTransform_double_3_3\n"
                      "#Transform 1\nTransform: AffineTransform_double_3_3\n"
                      "Parameters: 1 0 0 0 1 0 0 0 1 0 0 0\nFixedParameters: 0 0 0\n"
                      "#Transform 2\nTransform: BSplineTransform_double_3_3\nParameters: 0 0 0"),
            0);
  EXPECT_NE(text.find(" 0 1 1 "), std::string::npos);
  EXPECT_NE(text.find(" 1 2 2 "), std::string::npos);
  EXPECT_NE(text.find("\nFixedParameters: 4 4 4 -31 12.5 140 1.25 0.75 2.5 "), std::string::npos);
}

TEST_F(ItkTransformTest, APlaneBecomesFourEqualOnes) {
  const ControlGridFile file = SomeFile({7, 5, 1});
  const auto read = ParseItkTransform(FormatItkTransform(file));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->grid.size, (Int3{7, 5, 4}));
  const size_t plane = file.coefficients.size();
  for (size_t i = 0; i < read->coefficients.size(); ++i) {
    ASSERT_EQ(read->coefficients[i], file.coefficients[i % plane]);
  }
  // The plane lies in the middle.
  const Vec3d middle = IndexToPhysical(read->grid)({2, 3, 1.5}), original = IndexToPhysical(file.grid)({2, 3, 0});
  for (int a = 0; a < 3; ++a) EXPECT_NEAR(middle[a], original[a], 1e-9);
}

TEST_F(ItkTransformTest, AnAffineCentreIsTakenIn) {
  const std::string text = absl::StrReplaceAll(FormatItkTransform(SomeFile()),
                                               {{"\nFixedParameters: 0 0 0\n", "\nFixedParameters: 0 8 0\n"}});
  const auto read = ParseItkTransform(text);
  ASSERT_THAT(read, Succeeds());
  // x + 0.125 y about y = 8.
  EXPECT_DOUBLE_EQ(read->affine.m[0][3], -1);
}

// A list as ITK writes it: the transforms of a CompositeTransform, of which ITK applies the last one first.
std::string ListOf(const std::string& affines) {
  const std::string good = FormatItkTransform(SomeFile());
  const size_t first = good.find("#Transform 1"), spline = good.find("#Transform 2");
  return good.substr(0, first) + affines + good.substr(spline);
}
std::string Affine(const std::string& parameters, const std::string& type = "AffineTransform_double_3_3") {
  return "#Transform 1\nTransform: " + type + "\nParameters: " + parameters + "\nFixedParameters: 0 0 0\n";
}

TEST_F(ItkTransformTest, AffineTransformsOfAListAreComposedInTheOrderOfItk) {
  const auto two = ParseItkTransform(ListOf(Affine("1 0 0 0 1 0 0 0 1 10 0 0") + Affine("1 0 0 0 1 0 0 0 1 100 0 0")));
  ASSERT_THAT(two, Succeeds());
  EXPECT_EQ(two->affine({0, 0, 0}), (Vec3d{110, 0, 0}));
  // Scaled by 2, then moved by 10 along x: the last transform of the list is applied first.
  const auto scale_first =
      ParseItkTransform(ListOf(Affine("1 0 0 0 1 0 0 0 1 10 0 0") + Affine("2 0 0 0 2 0 0 0 2 0 0 0")));
  ASSERT_THAT(scale_first, Succeeds());
  EXPECT_EQ(scale_first->affine({1, 1, 1}), (Vec3d{12, 2, 2}));
  const auto move_first = ParseItkTransform(ListOf(
      Affine("2 0 0 0 2 0 0 0 2 0 0 0") + Affine("1 0 0 0 1 0 0 0 1 10 0 0", "MatrixOffsetTransformBase_double_3_3")));
  ASSERT_THAT(move_first, Succeeds());
  EXPECT_EQ(move_first->affine({1, 1, 1}), (Vec3d{22, 2, 2}));
  std::string many;
  for (int i = 0; i < 20; ++i) many += Affine("1 0 0 0 1 0 0 0 1 1 2 3");
  const auto twenty = ParseItkTransform(ListOf(many));
  ASSERT_THAT(twenty, Succeeds());
  EXPECT_EQ(twenty->affine({0, 0, 0}), (Vec3d{20, 40, 60}));
  EXPECT_THAT(ParseItkTransform(ListOf(Affine("1e200 0 0 0 1e200 0 0 0 1e200 0 0 0") +
                                       Affine("1e200 0 0 0 1e200 0 0 0 1e200 0 0 0"))),
              Fails(kInvalid, "Parameters: "));
}

TEST_F(ItkTransformTest, ListsThatAreNoAffineMapOfASplineAreRefused) {
  const std::string good = FormatItkTransform(SomeFile());
  const std::string magic = "#Insight Transform File V1.0\n";
  const std::string affine =
      good.substr(good.find("#Transform 1"), good.find("#Transform 2") - good.find("#Transform 1"));
  const std::string spline = good.substr(good.find("#Transform 2"));
  const std::string composite = "Transform: CompositeTransform_double_3_3\n";
  EXPECT_THAT(ParseItkTransform(magic + affine + spline), Fails(kUnimplemented, "without a CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + spline + spline), Fails(kUnimplemented, "without a CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + affine + composite + spline), Fails(kUnimplemented, "CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + composite + composite + spline), Fails(kUnimplemented, "CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + composite + spline + affine), Fails(kUnimplemented, "not the last"));
  EXPECT_THAT(ParseItkTransform(magic + composite + spline + spline), Fails(kUnimplemented, "not the last"));
  EXPECT_THAT(ParseItkTransform(magic + composite + affine), Fails(kUnimplemented, "without a B-spline"));
  EXPECT_THAT(ParseItkTransform(magic + composite), Fails(kUnimplemented, "without a B-spline"));
  // One spline alone is a transform of its own.
  const auto alone = ParseItkTransform(magic + spline);
  ASSERT_THAT(alone, Succeeds());
  EXPECT_EQ(alone->affine({1, 2, 3}), (Vec3d{1, 2, 3}));
}

TEST_F(ItkTransformTest, Refuses) {
  const std::string good = FormatItkTransform(SomeFile());
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(good.find(from), std::string::npos) << from;
    return ParseItkTransform(absl::StrReplaceAll(good, {{from, to}}));
  };
  EXPECT_THAT(ParseItkTransform(""), Fails(kInvalid, "file: is not"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\n"), Fails(kUnimplemented, "without a B-spline"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\nParameters: 1\n"),
              Fails(kInvalid, "Transform: is missing"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\nnothing\n"), Fails(kInvalid, "without a key"));
  EXPECT_THAT(with("BSplineTransform_double_3_3", "BSplineTransform_double_2_2"), Fails(kUnimplemented, "neither"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 7 "), Fails(kInvalid, "Parameters: has "));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 5 "), Fails(kInvalid, "Parameters: must have 300"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 3 "), Fails(kInvalid, "3 control points"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 16384 16384 16384 "),
              Fails(kInvalid, "has fewer than"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 1e300 5 6 "), Fails(kInvalid, "control points"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 -31", "FixedParameters: 4 5 6 nan"), Fails(kInvalid, "FixedParameters"));
  EXPECT_THAT(with("Parameters: 1 0.125 0", "Parameters: 0 0 0"),
              Fails(kInvalid, "Parameters: the matrix is singular"));
  EXPECT_THAT(with(" 1.25 0.75 2.5 ", " 0 0.75 2.5 "), Fails(kInvalid, "FixedParameters: spacing"));
  EXPECT_THAT(ReadItkTransform(Put("long.tfm", good), good.size() - 1),
              Fails(absl::StatusCode::kResourceExhausted, "file: "));
}

}  // namespace
}  // namespace intrawarp::io
