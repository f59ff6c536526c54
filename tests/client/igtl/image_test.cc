// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/image.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

double Uniform(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

// Any grid: turned, anisotropic, right- or left-handed.
Geometry RandomGeometry(std::mt19937& random) {
  Geometry geometry;
  Vec3d a, b;
  for (int i = 0; i < 3; ++i) {
    geometry.size[i] = 1 + static_cast<int>(random() % 60);
    geometry.spacing[i] = Uniform(random, 0.2, 4);
    geometry.origin[i] = Uniform(random, -300, 300);
    a[i] = Uniform(random, -1, 1);
    b[i] = Uniform(random, -1, 1);
  }
  a = (1 / std::sqrt(Dot(a, a))) * a;
  b = b - Dot(a, b) * a;
  b = (1 / std::sqrt(Dot(b, b))) * b;
  const double hand = random() % 2 == 0 ? 1 : -1;
  const Vec3d c = hand * Vec3d{a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
  for (int row = 0; row < 3; ++row) {
    geometry.direction[row][0] = a[row];
    geometry.direction[row][1] = b[row];
    geometry.direction[row][2] = c[row];
  }
  return geometry;
}

// Where a voxel lies by the words of the protocol, in LPS: from the centre of the volume along the axes.
Vec3d PointOf(const ImageHeader& header, const Vec3d& index) {
  Vec3d p;
  for (int row = 0; row < 3; ++row) {
    p[row] = header.matrix[row][3];
    for (int axis = 0; axis < 3; ++axis)
      p[row] += header.matrix[row][axis] * (index[axis] - (header.size[axis] - 1) / 2.0);
  }
  return header.coordinates == Coordinates::kRas ? Vec3d{-p.x, -p.y, p.z} : p;
}

TEST(ImageGeometry, RandomGridsComeBackInBothCoordinateSystems) {
  std::mt19937 random(5);
  for (int i = 0; i < 1000; ++i) {
    const Geometry geometry = RandomGeometry(random);
    const Coordinates coordinates = i % 2 == 0 ? Coordinates::kRas : Coordinates::kLps;
    const ImageHeader header = HeaderOfGeometry(geometry, coordinates, PixelType::kInt16, 1);
    const auto again = GeometryOfImage(header);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(SameGrid(geometry, *again, 1e-3)) << i;
    const Vec3d index = {Uniform(random, 0, geometry.size.x), Uniform(random, 0, geometry.size.y), 0};
    const Vec3d difference = IndexToPhysical(geometry)(index) - PointOf(header, index);
    EXPECT_LT(std::sqrt(Dot(difference, difference)), 1e-3) << i;
  }
}

TEST(ImageGeometry, ThePositionIsTheCentre) {
  Geometry geometry;
  geometry.size = {11, 21, 5};
  geometry.spacing = {1, 2, 3};
  geometry.origin = {10, 20, 30};
  const ImageHeader lps = HeaderOfGeometry(geometry, Coordinates::kLps, PixelType::kUint8, 1);
  EXPECT_FLOAT_EQ(lps.matrix[0][3], 15);
  EXPECT_FLOAT_EQ(lps.matrix[1][3], 40);
  EXPECT_FLOAT_EQ(lps.matrix[2][3], 36);
  EXPECT_FLOAT_EQ(lps.matrix[1][1], 2);
  const ImageHeader ras = HeaderOfGeometry(geometry, Coordinates::kRas, PixelType::kUint8, 1);
  EXPECT_FLOAT_EQ(ras.matrix[0][3], -15);
  EXPECT_FLOAT_EQ(ras.matrix[1][3], -40);
  EXPECT_FLOAT_EQ(ras.matrix[2][3], 36);
  EXPECT_FLOAT_EQ(ras.matrix[1][1], -2);
}

// As OpenIGTLinkIO, PLUS and pyigtl have it: (size - 1) / 2 voxels behind the centre of the first voxel, also where the
// size is even and no voxel lies there.
TEST(ImageGeometry, ThePositionOfAnEvenSizeLiesBetweenTwoVoxels) {
  ImageHeader header;
  header.coordinates = Coordinates::kLps;
  header.size = header.part_size = {4, 2, 1};
  header.matrix[0][0] = 2;
  header.matrix[1][1] = 3;
  header.matrix[2][2] = 5;
  header.matrix[0][3] = 100;
  header.matrix[1][3] = 200;
  header.matrix[2][3] = 300;
  const auto geometry = GeometryOfImage(header);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->origin, (Vec3d{97, 198.5, 300}));
  const ImageHeader again = HeaderOfGeometry(*geometry, Coordinates::kLps, PixelType::kUint8, 1);
  EXPECT_EQ(again.matrix[0][3], 100);
  EXPECT_EQ(again.matrix[1][3], 200);
  EXPECT_EQ(again.matrix[2][3], 300);
}

TEST(ImageGeometry, APlaneWithoutANormalGetsOne) {
  ImageHeader header;
  header.size = header.part_size = {4, 4, 1};
  header.coordinates = Coordinates::kLps;
  header.matrix[0][0] = header.matrix[2][1] = 0.5f;
  const auto geometry = GeometryOfImage(header);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->spacing.z, 1);
  EXPECT_EQ(geometry->direction[1][2], -1);
}

TEST(ImageGeometry, RefusesAxesThatAreNone) {
  ImageHeader header;
  header.size = header.part_size = {4, 4, 4};
  EXPECT_EQ(FieldOf(GeometryOfImage(header).status()), "image.matrix");
  header.matrix[0][0] = header.matrix[1][1] = header.matrix[2][2] = 1;
  EXPECT_TRUE(GeometryOfImage(header).ok());
  header.matrix[0][1] = 0.5f;  // sheared
  EXPECT_EQ(FieldOf(GeometryOfImage(header).status()), "image.matrix");
  header.matrix[0][1] = std::nanf("");
  EXPECT_EQ(FieldOf(GeometryOfImage(header).status()), "image.matrix");
}

TEST(ParseImage, EveryTypeAndPartComesBack) {
  for (const PixelType type : {PixelType::kUint8, PixelType::kInt8, PixelType::kUint16, PixelType::kInt16,
                               PixelType::kUint32, PixelType::kInt32, PixelType::kFloat32, PixelType::kFloat64}) {
    ImageHeader header;
    header.pixel_type = type;
    header.components = 3;
    header.is_big_endian = true;
    header.size = {5, 6, 7};
    header.part_begin = {1, 2, 3};
    header.part_size = {4, 2, 1};
    const std::string voxels(4 * 2 * 3 * BytesPerPixel(type), 'v');
    const std::string content = PackImageHeader(header) + voxels;
    const auto image = ParseImage(content);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->header.pixel_type, type);
    EXPECT_EQ(image->header.part_size, header.part_size);
    EXPECT_FALSE(image->header.is_whole());
    EXPECT_TRUE(image->header.is_big_endian);
    EXPECT_EQ(image->voxels, voxels);
    EXPECT_EQ(FieldOf(ParseImage(content + "x").status()), "image.voxels");
    EXPECT_EQ(FieldOf(ParseImage(absl::string_view(content).substr(1)).status()).substr(0, 5), "image");
    EXPECT_EQ(FieldOf(ParseImage(content.substr(0, content.size() - 1)).status()), "image.voxels");
  }
}

TEST(FindVoxels, IsWhatParseImageFinds) {
  ImageHeader header;
  header.pixel_type = PixelType::kInt16;
  header.size = header.part_size = {40, 30, 20};
  const std::string content = PackImageHeader(header) + std::string(40 * 30 * 20 * 2, 'v');
  for (const uint16_t version : {1, 2}) {
    const Envelope envelope = {
        .header_version = version, .type = "IMAGE", .device = "Device", .metadata = {{"key", "value"}}};
    const std::string message = PackMessage(envelope, {content});
    const auto head = ParseHeader(absl::string_view(message).substr(0, kHeaderBytes));
    ASSERT_TRUE(head.ok()) << head.status();
    const absl::string_view first = absl::string_view(message).substr(kHeaderBytes, 1024);
    const auto part = FindVoxels(*head, first);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->header.size, header.size);
    EXPECT_EQ(part->bytes, content.size() - 72);
    EXPECT_EQ(message[kHeaderBytes + part->begin - 1] == 'v', false);
    EXPECT_EQ(absl::string_view(message).substr(kHeaderBytes + part->begin, part->bytes), content.substr(72));
    MessageHeader longer = *head;
    ++longer.body_bytes;
    EXPECT_EQ(FieldOf(FindVoxels(longer, first).status()), "image.voxels");
    EXPECT_FALSE(FindVoxels(*head, first.substr(0, 50)).ok());
    longer.body_bytes = 20;
    EXPECT_FALSE(FindVoxels(longer, first).ok());
  }
}

TEST(ParseImage, RefusesBySize) {
  EXPECT_EQ(FieldOf(ParseImage("").status()), "image");
  EXPECT_EQ(FieldOf(ParseImage(std::string(71, '\0')).status()), "image");
  ImageHeader huge;
  huge.pixel_type = PixelType::kFloat64;
  huge.components = 255;
  huge.size = huge.part_size = {65535, 65535, 65535};
  EXPECT_EQ(FieldOf(ParseImage(PackImageHeader(huge)).status()), "image.voxels");
  ImageHeader beyond;
  beyond.part_begin = {1, 0, 0};
  EXPECT_EQ(FieldOf(ParseImage(PackImageHeader(beyond) + "1234").status()), "image.subvolume");
  ImageHeader empty;
  empty.size = empty.part_size = {0, 1, 1};
  EXPECT_EQ(FieldOf(ParseImage(PackImageHeader(empty)).status()), "image.size");
}

TEST(SwapBytes, TurnsValuesRound) {
  std::string two = "abcd", eight = "12345678", one = "ab";
  SwapBytes(two, 2);
  SwapBytes(eight, 8);
  SwapBytes(one, 1);
  EXPECT_EQ(two, "badc");
  EXPECT_EQ(eight, "87654321");
  EXPECT_EQ(one, "ab");
}

}  // namespace
}  // namespace intrawarp::igtl
