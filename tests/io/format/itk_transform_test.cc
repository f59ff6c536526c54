// SPDX-License-Identifier: Apache-2.0
#include "io/format/itk_transform.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using ItkTransformTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

ItkTransform SomeFile(Int3 size = {4, 5, 6}) {
  ItkTransform file;
  file.kind = ItkTransform::Kind::kControlGrid;
  file.affine.m[0][1] = 0.125;
  file.affine.m[2][3] = -7.5;
  file.grid = ObliqueGeometry(size, /*left_handed=*/true);
  file.vectors = RandomFloats(3 * file.grid.voxels(), 5, -10, 10);
  return file;
}

TEST_F(ItkTransformTest, WrittenGridReadsBackExactly) {
  const ItkTransform file = SomeFile();
  ASSERT_THAT(WriteItkTransform(Path("t.tfm"), file), Succeeds());
  const auto read = ReadItkTransform(Path("t.tfm"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_TRUE(read->grid == file.grid);
  EXPECT_EQ(read->vectors, file.vectors);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) EXPECT_EQ(read->affine.m[r][c], file.affine.m[r][c]);
}

// By hand, from ITK's documentation: the affine one first (it is applied last), components in planes.
TEST_F(ItkTransformTest, LaysOutWhatItkReads) {
  ItkTransform file = SomeFile({4, 4, 4});
  file.affine = AffineMap::Identity();
  for (size_t i = 0; i < file.vectors.size(); ++i) file.vectors[i] = static_cast<float>(i % 3);
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
  const ItkTransform file = SomeFile({7, 5, 1});
  const auto read = ParseItkTransform(FormatItkTransform(file));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->grid.size, (Int3{7, 5, 4}));
  const size_t plane = file.vectors.size();
  for (size_t i = 0; i < read->vectors.size(); ++i) {
    ASSERT_EQ(read->vectors[i], file.vectors[i % plane]);
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

TEST_F(ItkTransformTest, ListsThatDoNotComposeAreRefused) {
  const std::string good = FormatItkTransform(SomeFile());
  const std::string magic = "#Insight Transform File V1.0\n";
  const std::string affine =
      good.substr(good.find("#Transform 1"), good.find("#Transform 2") - good.find("#Transform 1"));
  const std::string spline = good.substr(good.find("#Transform 2"));
  const std::string field =
      "Transform: DisplacementFieldTransform_double_3_3\nParameters: 1 2 3\n"
      "FixedParameters: 1 1 1 0 0 0 1 1 1 1 0 0 0 1 0 0 0 1\n";
  const std::string composite = "Transform: CompositeTransform_double_3_3\n";
  EXPECT_THAT(ParseItkTransform(magic + affine + spline), Fails(kUnimplemented, "without a CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + affine + affine), Fails(kUnimplemented, "without a CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + spline + spline), Fails(kUnimplemented, "without a CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + affine + composite + spline), Fails(kUnimplemented, "CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + composite + composite + spline), Fails(kUnimplemented, "CompositeTransform"));
  EXPECT_THAT(ParseItkTransform(magic + composite + spline + spline), Fails(kUnimplemented, "several"));
  EXPECT_THAT(ParseItkTransform(magic + composite + field + spline), Fails(kUnimplemented, "several"));
  EXPECT_THAT(ParseItkTransform(magic + composite + field + affine + field), Fails(kUnimplemented, "several"));
  EXPECT_THAT(ParseItkTransform(magic + composite), Fails(kUnimplemented, "without transforms"));
  // A shear before the spline.
  EXPECT_THAT(ParseItkTransform(magic + composite + spline + affine), Fails(kUnimplemented, "shears the grid"));
  for (const char* type :
       {"InverseDisplacementFieldTransform", "InverseBSplineTransform", "BSplineDeformableTransform",
        "ThinPlateSplineKernelTransform", "ScaleSkewVersor3DTransform", "QuaternionRigidTransform"}) {
    EXPECT_THAT(ParseItkTransform(absl::StrCat(magic, "Transform: ", type, "_double_3_3\nParameters: 1\n")),
                Fails(kUnimplemented, type));
  }
  for (const char* type : {"AffineTransform_double_2_2", "NobodysTransform_double_3_3", "AffineTransform", "",
                           "BSplineTransform_double_3_3_2"}) {
    EXPECT_THAT(ParseItkTransform(absl::StrCat(magic, "Transform: ", type, "\nParameters: 1\n")),
                Fails(kUnimplemented, "Transform: neither"));
  }
  // One spline alone is a transform of its own.
  const auto alone = ParseItkTransform(magic + spline);
  ASSERT_THAT(alone, Succeeds());
  EXPECT_EQ(alone->affine({1, 2, 3}), (Vec3d{1, 2, 3}));
}

AffineMap AffineOf(const std::string& type, const std::string& parameters, const std::string& fixed) {
  const auto read = ParseItkTransform("#Insight Transform File V1.0\nTransform: " + type +
                                      "\nParameters: " + parameters + "\nFixedParameters: " + fixed + "\n");
  EXPECT_THAT(read, Succeeds()) << type;
  if (!read.ok()) return AffineMap::Identity();
  EXPECT_EQ(read->kind, ItkTransform::Kind::kAffine);
  return read->affine;
}

void ExpectPoint(Vec3d a, Vec3d b) {
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(a[c], b[c], 1e-9);
}

// A quarter turn, by hand; itk_round_trip_test compares with ITK.
TEST_F(ItkTransformTest, AffineTypes) {
  const std::string half_pi = "1.5707963267948966", root = "0.70710678118654752";
  const Vec3d p{1, 2, 3};
  ExpectPoint(AffineOf("Euler3DTransform_double_3_3", half_pi + " 0 0 10 0 0", "0 0 0")(p), {11, -3, 2});
  ExpectPoint(AffineOf("Euler3DTransform_double_3_3", "0 " + half_pi + " 0 0 0 0", "0 0 0 0")(p), {3, 2, -1});
  ExpectPoint(AffineOf("Euler3DTransform_float_3_3", "0 0 " + half_pi + " 0 0 0", "0 0 0 1")(p), {-2, 1, 3});
  // Z X Y by default, Z Y X when the file says so.
  ExpectPoint(AffineOf("Euler3DTransform_double_3_3", half_pi + " " + half_pi + " 0 0 0 0", "0 0 0")(p), {3, 1, 2});
  ExpectPoint(AffineOf("Euler3DTransform_double_3_3", half_pi + " " + half_pi + " 0 0 0 0", "0 0 0 1")(p), {2, -3, -1});
  ExpectPoint(AffineOf("VersorRigid3DTransform_double_3_3", "0 0 " + root + " 10 0 0", "1 0 0")(p), {9, 0, 3});
  ExpectPoint(AffineOf("VersorTransform_double_3_3", "0 0 " + root, "0 0 0")(p), {-2, 1, 3});
  ExpectPoint(AffineOf("Similarity3DTransform_double_3_3", "0 0 " + root + " 10 0 0 2", "1 0 0")(p), {7, 0, 6});
  ExpectPoint(AffineOf("ScaleTransform_double_3_3", "2 3 4", "1 0 0")(p), {1, 6, 12});
  ExpectPoint(AffineOf("TranslationTransform_double_3_3", "10 20 30", "")(p), {11, 22, 33});
  ExpectPoint(AffineOf("IdentityTransform_double_3_3", "", "")(p), p);
  const std::string magic = "#Insight Transform File V1.0\nTransform: ";
  EXPECT_THAT(ParseItkTransform(magic + "VersorTransform_double_3_3\nParameters: 0 0 0\nFixedParameters: 1 0 0\n"),
              Fails(kUnimplemented, "VersorTransform about a centre"));
  EXPECT_THAT(ParseItkTransform(magic + "VersorTransform_double_3_3\nParameters: 1 1 1\nFixedParameters: 0 0 0\n"),
              Fails(kInvalid, "Parameters: the versor"));
  EXPECT_THAT(ParseItkTransform(magic + "ScaleTransform_double_3_3\nParameters: 1 0 1\nFixedParameters: 0 0 0\n"),
              Fails(kInvalid, "Parameters: the matrix is singular"));
  EXPECT_THAT(ParseItkTransform(magic + "TranslationTransform_double_3_3\nParameters: 1 2\nFixedParameters:\n"),
              Fails(kInvalid, "Parameters: has fewer than 3"));
  EXPECT_THAT(ParseItkTransform(magic + "TranslationTransform_double_3_3\nParameters: 1 2 3\nFixedParameters: 1\n"),
              Fails(kInvalid, "FixedParameters: must have 0"));
  EXPECT_THAT(ParseItkTransform(magic + "Euler3DTransform_double_3_3\nParameters: 0 0 0 0 0 0\nFixedParameters: 0 0\n"),
              Fails(kInvalid, "FixedParameters: has fewer than 3"));
}

ItkTransform SomeField(Int3 size = {4, 5, 6}) {
  ItkTransform field = SomeFile(size);
  field.kind = ItkTransform::Kind::kDisplacement;
  return field;
}

TEST_F(ItkTransformTest, EveryFormComesBackFromEveryFile) {
  ItkTransform affine;
  affine.affine.m[0][1] = 1.0 / 3;
  ItkTransform plain = SomeField();
  plain.affine = AffineMap::Identity();
  for (const ItkTransform& transform : {affine, SomeFile(), SomeField(), plain, SomeField({7, 5, 1})}) {
    for (const char* name : {"t.tfm", "t.txt", "t.h5", "t.hdf5", "t.hdf"}) {
      ASSERT_THAT(WriteItkTransform(Path(name), transform), Succeeds());
      const auto read = ReadItkTransform(Path(name));
      ASSERT_THAT(read, Succeeds());
      EXPECT_EQ(read->kind, transform.kind);
      EXPECT_TRUE(read->grid == transform.grid);
      EXPECT_EQ(read->vectors, transform.vectors);
      for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 4; ++c) EXPECT_EQ(read->affine.m[r][c], transform.affine.m[r][c]);
      const std::string bytes = Get(Path(name));
      ASSERT_THAT(WriteItkTransform(Path(name), transform), Succeeds());
      EXPECT_EQ(Get(Path(name)), bytes);
    }
  }
  ItkTransform wrong = SomeField();
  wrong.vectors.pop_back();
  EXPECT_THAT(WriteItkTransform(Path("t.h5"), wrong), Fails(kInvalid, "vectors: "));
}

// By hand: a field's parameters are one vector after the other, a spline's one plane after the other.
TEST_F(ItkTransformTest, AFieldIsLaidOutAsVectors) {
  const auto read = ParseItkTransform(
      "#Insight Transform File V1.0\nTransform: DisplacementFieldTransform_float_3_3\nParameters: 1 2 3 4 5 6\n"
      "FixedParameters: 2 1 1 10 20 30 1 2 3 0 1 0 -1 0 0 0 0 1\n");
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->kind, ItkTransform::Kind::kDisplacement);
  EXPECT_EQ(read->vectors, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(IndexToPhysical(read->grid)({1, 0, 0}), (Vec3d{10, 19, 30}));
}

// x + u(x) linear between the samples.
Vec3d Displaced(const ItkTransform& t, Vec3d p) {
  const Vec3d index = PhysicalToIndex(t.grid)(p);
  Vec3d u;
  const int base[3] = {static_cast<int>(std::floor(index.x)), static_cast<int>(std::floor(index.y)),
                       static_cast<int>(std::floor(index.z))};
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    int64_t at[3];
    for (int a = 0; a < 3; ++a) {
      const int bit = corner >> a & 1;
      const double part = index[a] - base[a];
      weight *= bit ? part : 1 - part;
      at[a] = std::clamp(base[a] + bit, 0, t.grid.size[a] - 1);
    }
    const int64_t i = (at[2] * t.grid.size.y + at[1]) * t.grid.size.x + at[0];
    for (int c = 0; c < 3; ++c) u[c] += weight * t.vectors[3 * i + c];
  }
  return t.affine(p + u);
}

// A map of shape and angle before a field moves its grid; what it composes to is the same function.
TEST_F(ItkTransformTest, AnAffineMapBeforeAFieldMovesItsGrid) {
  ItkTransform field = SomeField({6, 7, 8});
  const std::string text = FormatItkTransform(field);
  const std::string similarity =
      "Transform: Similarity3DTransform_double_3_3\nParameters: 0.1 -0.2 0.3 5 6 7 1.25\n"
      "FixedParameters: 10 20 30\n";
  const auto inner = ParseItkTransform("#Insight Transform File V1.0\n" + similarity);
  ASSERT_THAT(inner, Succeeds());
  const auto read = ParseItkTransform(text + similarity);
  ASSERT_THAT(read, Succeeds());
  std::mt19937 engine(3);
  for (int i = 0; i < 1000; ++i) {
    const Vec3d index{std::uniform_real_distribution<>(0, 5)(engine), std::uniform_real_distribution<>(0, 6)(engine),
                      std::uniform_real_distribution<>(0, 7)(engine)};
    const Vec3d p = IndexToPhysical(read->grid)(index);
    const Vec3d composed = Displaced(*read, p), stepwise = Displaced(field, inner->affine(p));
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(composed[c], stepwise[c], 1e-4);
  }
}

TEST_F(ItkTransformTest, AWholeDisplacementHoldsTheAffineMap) {
  const ItkTransform field = SomeField({6, 7, 8});
  ItkTransform whole = field;
  whole.affine = AffineMap::Identity();
  whole.vectors = WholeDisplacement(field);
  std::mt19937 engine(3);
  for (int i = 0; i < 1000; ++i) {
    const Vec3d index{std::uniform_real_distribution<>(0, 5)(engine), std::uniform_real_distribution<>(0, 6)(engine),
                      std::uniform_real_distribution<>(0, 7)(engine)};
    const Vec3d p = IndexToPhysical(field.grid)(index);
    const Vec3d a = Displaced(whole, p), b = Displaced(field, p);
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(a[c], b[c], 1e-4);
  }
}

TEST_F(ItkTransformTest, Refuses) {
  const std::string good = FormatItkTransform(SomeFile());
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(good.find(from), std::string::npos) << from;
    return ParseItkTransform(absl::StrReplaceAll(good, {{from, to}}));
  };
  EXPECT_THAT(ParseItkTransform(""), Fails(kInvalid, "file: is not"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\n"), Fails(kInvalid, "Transform: is missing"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\nParameters: 1\n"),
              Fails(kInvalid, "Transform: is missing"));
  EXPECT_THAT(ParseItkTransform("#Insight Transform File V1.0\nnothing\n"), Fails(kInvalid, "without a key"));
  EXPECT_THAT(with("BSplineTransform_double_3_3", "BSplineTransform_double_2_2"), Fails(kUnimplemented, "neither"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 7 "), Fails(kInvalid, "Parameters: has "));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 5 "), Fails(kInvalid, "Parameters: must have 300"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 4 5 3 "), Fails(kInvalid, "3 control points"));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 16384 16384 16384 "),
              Fails(absl::StatusCode::kResourceExhausted, "size: "));
  EXPECT_THAT(with("FixedParameters: 4 5 6 ", "FixedParameters: 1000 1000 1000 "), Fails(kInvalid, "has fewer than"));
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
