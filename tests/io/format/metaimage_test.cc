// SPDX-License-Identifier: Apache-2.0
#include "io/format/metaimage.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/io/format/grid_file_test.h"

namespace intrawarp::io {
namespace {

using MetaImageTest = GridFileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// As ITK writes it: the rows of TransformMatrix are the axes.
constexpr char kItk[] =
    "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = False\n"
    "TransformMatrix = 0 -1 0 1 0 0 0 0 1\nOffset = 10 20.5 -30\nCenterOfRotation = 0 0 0\n"
    "AnatomicalOrientation = RAI\nElementSpacing = 2 0.5 3\nDimSize = 4 3 2\nElementType = MET_SHORT\n"
    "ElementDataFile = LOCAL\n";

TEST_F(MetaImageTest, EveryTypeAndOrientationComesBack) {
  ExpectVolumesComeBack({"v.mha", "v.mhd"}, WriteMetaImage, ReadMetaImage);
}

TEST_F(MetaImageTest, ReadsWhatOthersWrite) {
  const std::string samples = Counting(48);
  const std::string header = kItk;
  Geometry expected;
  expected.size = {4, 3, 2};
  expected.spacing = {2, 0.5, 3};
  expected.origin = {10, 20.5, -30};
  const double direction[3][3] = {{0, 1, 0}, {-1, 0, 0}, {0, 0, 1}};
  std::copy(&direction[0][0], &direction[0][0] + 9, &expected.direction[0][0]);
  const auto check = [&](const std::string& file) {
    const auto read = ReadMetaImage(Put("v.mha", file));
    ASSERT_THAT(read, Succeeds());
    ExpectSameGrid(read->geometry, expected);
    EXPECT_EQ(read->pixel_type, PixelType::kInt16);
    EXPECT_EQ(Bytes(*read), samples);
    EXPECT_EQ(read->rescale_slope, 1);
  };
  const auto with = [&](const std::vector<std::pair<std::string, std::string>>& changes) {
    return absl::StrReplaceAll(header, changes);
  };
  Put("v.raw", samples);
  Put("big.raw", "xyz" + samples);
  Put("v.zraw", Deflated(samples, 15));
  check(header + samples);
  check(with({{"\n", "\r\n"}}) + samples);
  check(with({{" = ", "="}}) + samples);
  check(with({{"OrderMSB = False", "OrderMSB = True"}}) + Reversed(samples, 2));
  check(with({{"BinaryDataByteOrderMSB = False", "ElementByteOrderMSB = True"}}) + Reversed(samples, 2));
  check(with({{"CompressedData = False", "CompressedData = True"}}) + Deflated(samples, 15));
  check(with({{"CompressedData = False", "CompressedData = True\nCompressedDataSize = 99"}}) + Deflated(samples, 31));
  check(with({{"TransformMatrix", "Rotation"}, {"Offset", "Position"}, {"ElementSpacing", "ElementSize"}}) + samples);
  check(with({{"Offset", "Origin"}, {"TransformMatrix", "Orientation"}}) + samples);
  check(with({{"LOCAL", "v.raw"}}));
  check(with({{"LOCAL", "v.zraw"}, {"CompressedData = False", "CompressedData = True"}}));
  check(with({{"LOCAL", "big.raw"}, {"DimSize", "HeaderSize = 3\nDimSize"}}));
  check(with({{"LOCAL", "big.raw"}, {"DimSize", "HeaderSize = -1\nDimSize"}}));
  check(with({{"2 0.5 3", "2000 500 3000"},
              {"10 20.5 -30", "10000 20500 -30000"},
              {"DimSize", "DistanceUnits = um\nDimSize"}}) +
        samples);
  const auto rescaled = ReadMetaImage(
      Put("v.mha",
          with({{"DimSize", "ElementToIntensityFunctionSlope = 0.5\nElementToIntensityFunctionOffset = -7\nDimSize"}}) +
              samples));
  ASSERT_THAT(rescaled, Succeeds());
  EXPECT_EQ(rescaled->rescale_slope, 0.5);
  EXPECT_EQ(rescaled->rescale_intercept, -7);
}

TEST_F(MetaImageTest, TwoDimensions) {
  const auto read = ReadMetaImage(Put("v.mha",
                                      "NDims = 2\nDimSize = 4 3\nElementSpacing = 0.5 2\nOffset = 1 2\n"
                                      "TransformMatrix = 0 1 -1 0\nElementType = MET_UCHAR\n"
                                      "ElementDataFile = LOCAL\n" +
                                          Counting(12)));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->geometry.size, (Int3{4, 3, 1}));
  EXPECT_EQ(IndexToPhysical(read->geometry)({2, 1, 0}), (Vec3d{-1, 3, 0}));
}

TEST_F(MetaImageTest, FieldsComeBack) {
  ExpectFieldsComeBack({"f.mha", "f.mhd"}, WriteMetaImageField, ReadMetaImageField, [](const std::string& path) {
    EXPECT_THAT(ReadMetaImage(path), Fails(kInvalid, "ElementNumberOfChannels: must be 1"));
  });
  const std::vector<double> values = {1, 2, 3, 4};
  const std::string flat =
      "NDims = 2\nDimSize = 2 1\nElementNumberOfChannels = 2\nElementType = MET_DOUBLE_ARRAY\n"
      "ElementDataFile = LOCAL\n" +
      std::string(reinterpret_cast<const char*>(values.data()), 32);
  const auto read = ReadMetaImageField(Put("f.mha", flat));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->displacement, (std::vector<float>{1, 2, 0, 3, 4, 0}));
  EXPECT_THAT(ReadMetaImageField(Put("v.mha", kItk + Counting(48))),
              Fails(kInvalid, "ElementNumberOfChannels: must be 3"));
  std::string broken = flat;
  const double nan = std::nan("");
  std::memcpy(broken.data() + broken.size() - 8, &nan, 8);
  EXPECT_THAT(ReadMetaImageField(Put("f.mha", broken)), Fails(kInvalid, "displacement: voxel 1"));
}

TEST_F(MetaImageTest, Refuses) {
  const std::string samples = Counting(48);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(std::string(kItk).find(from), std::string::npos) << from;
    return ReadMetaImage(Put("v.mha", absl::StrReplaceAll(kItk, {{from, to}}) + samples));
  };
  EXPECT_THAT(with("ObjectType = Image", "ObjectType = Tube"), Fails(kInvalid, "ObjectType: "));
  EXPECT_THAT(with("ObjectType = Image", "nothing"), Fails(kInvalid, "header: has a line"));
  EXPECT_THAT(with("NDims = 3", "NDims = 3\nNDims = 3"), Fails(kInvalid, "header: states a key twice"));
  EXPECT_THAT(with("NDims = 3\n", ""), Fails(kInvalid, "NDims: "));
  EXPECT_THAT(with("NDims = 3", "NDims = 4"), Fails(kUnimplemented, "NDims: "));
  EXPECT_THAT(with("NDims = 3", "NDims = 0"), Fails(kInvalid, "NDims: "));
  EXPECT_THAT(with("NDims = 3", "NDims = 2"), Fails(kInvalid, "DimSize: has 3"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 0"), Fails(kInvalid, "DimSize: must be"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 -1"), Fails(kInvalid, "DimSize: must be"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 1e300"), Fails(kInvalid, "DimSize: must be"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 2.5"), Fails(kInvalid, "DimSize: must be"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 x"), Fails(kInvalid, "DimSize: a number"));
  EXPECT_THAT(with("DimSize = 4 3 2\n", ""), Fails(kInvalid, "DimSize: has 0"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 16384 16384 16384"),
              Fails(absl::StatusCode::kResourceExhausted, "size: "));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 3"), Fails(kDataLoss, "data: ends after 48 of 72"));
  EXPECT_THAT(with("DimSize = 4 3 2", "DimSize = 4 3 1"), Fails(kInvalid, "data: there are more"));
  EXPECT_THAT(with("0 -1 0 1 0 0 0 0 1", "0 -1 0 1 0 0 0 0"), Fails(kInvalid, "TransformMatrix: has 8"));
  EXPECT_THAT(with("0 -1 0 1 0 0 0 0 1", "0 -1 0 1 1 0 0 0 1"), Fails(kInvalid, "direction: "));
  EXPECT_THAT(with("0 -1 0 1 0 0 0 0 1", "0 0 0 1 0 0 0 0 1"), Fails(kInvalid, "spacing: "));
  EXPECT_THAT(with("2 0.5 3", "2 0 3"), Fails(kInvalid, "ElementSpacing: "));
  EXPECT_THAT(with("2 0.5 3", "2 -0.5 3"), Fails(kInvalid, "ElementSpacing: "));
  EXPECT_THAT(with("2 0.5 3", "2 nan 3"), Fails(kInvalid, "ElementSpacing: "));
  EXPECT_THAT(with("10 20.5 -30", "10 20.5 -1e30"), Fails(kInvalid, "origin: "));
  EXPECT_THAT(with("MET_SHORT", "MET_LONG_LONG"), Fails(kUnimplemented, "ElementType: "));
  EXPECT_THAT(with("ElementType = MET_SHORT\n", ""), Fails(kInvalid, "ElementType: is missing"));
  EXPECT_THAT(with("BinaryData = True", "BinaryData = False"), Fails(kUnimplemented, "BinaryData: "));
  EXPECT_THAT(with("BinaryData = True", "BinaryData = maybe"), Fails(kInvalid, "BinaryData: "));
  EXPECT_THAT(with("CompressedData = False", "CompressedData = True"), Fails(kDataLoss, "data: the compressed"));
  EXPECT_THAT(with("DimSize", "HeaderSize = -2\nDimSize"), Fails(kInvalid, "HeaderSize: "));
  EXPECT_THAT(with("DimSize", "DistanceUnits = mile\nDimSize"), Fails(kInvalid, "DistanceUnits: "));
  EXPECT_THAT(with("DimSize", "ElementToIntensityFunctionSlope = 0\nDimSize"), Fails(kInvalid, "ElementToIntensity"));
  EXPECT_THAT(with("ElementDataFile = LOCAL\n", ""), Fails(kInvalid, "header: has a line"));
  EXPECT_THAT(with("LOCAL", "LIST"), Fails(kUnimplemented, "ElementDataFile: "));
  EXPECT_THAT(with("LOCAL", "slice%03d.raw 1 2 1"), Fails(kUnimplemented, "ElementDataFile: "));
  for (const char* name : {"../v.raw", "/etc/hostname", "..", "", "below/v.raw", "c:\\v.raw"}) {
    EXPECT_THAT(with("LOCAL", name), Fails(kInvalid, "ElementDataFile: ")) << name;
  }
  EXPECT_THAT(with("LOCAL", "nothing.raw"), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadMetaImage(Put("long.mha", "Comment = " + std::string(1 << 17, 'x') + "\n")),
              Fails(kInvalid, "header: is longer"));
  EXPECT_THAT(ReadMetaImage(Put("empty.mha", "")), Fails(kInvalid, "ElementDataFile: is missing"));
  EXPECT_THAT(WriteMetaImage(Path("v.raw"), NoiseVolume(FlippedGeometry(), PixelType::kInt8)),
              Fails(kInvalid, "path: "));
}

TEST_F(MetaImageTest, CompressedDataThatLies) {
  const std::string header = absl::StrReplaceAll(kItk, {{"CompressedData = False", "CompressedData = True"}});
  ExpectLiesAreRefused("v.mha", header, 15, ReadMetaImage);
}

TEST_F(MetaImageTest, PublicFiles) {
  const auto lung = TestData("reg3d/lung_ct_small/3DCT_lung_baseline_small.mha");
  const auto slice = TestData("reg2d/elastix_example/fixed.mhd");
  if (!lung.has_value()) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  const auto volume = ReadMetaImage(*lung);
  ASSERT_THAT(volume, Succeeds());
  EXPECT_EQ(volume->geometry.size, (Int3{57, 78, 64}));
  EXPECT_EQ(volume->geometry.origin, (Vec3d{-152.461, -148.986, -1432}));
  const std::vector<float> values = ToFloat(*volume);
  EXPECT_LT(*std::min_element(values.begin(), values.end()), -900);  // air, in Hounsfield units
  const auto image = ReadMetaImage(*slice);
  ASSERT_THAT(image, Succeeds());
  EXPECT_EQ(image->geometry.size, (Int3{256, 256, 1}));
}

}  // namespace
}  // namespace intrawarp::io
