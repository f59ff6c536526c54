// SPDX-License-Identifier: Apache-2.0
// Displacement fields and velocities as NIfTI.
#include <nifti1_io.h>
#include <nifti2.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"
#include "tests/engine/device_test.h"
#include "tests/io/format/nifti_fixture.h"

namespace intrawarp::io {
namespace {

HostField RandomField(const Geometry& geometry) { return {geometry, RandomFloats(3 * geometry.voxels(), 5, -20, 20)}; }

TEST_F(NiftiTest, FieldsComeBack) {
  for (const Geometry& geometry :
       {ObliqueGeometry({7, 5, 3}, true), ObliqueGeometry({9, 4, 1}), ObliqueGeometry({300, 1000, 1})}) {
    for (const char* name : {"f.nii", "f.nii.gz"}) {
      const HostField field = RandomField(geometry);
      ASSERT_THAT(WriteField(Path(name), field), Succeeds());
      const auto read = ReadField(Path(name));
      ASSERT_THAT(read, Succeeds());
      ExpectNear(read->geometry, geometry);
      EXPECT_EQ(read->displacement, field.displacement);
      EXPECT_THAT(ReadNifti(Path(name)), Fails(kInvalid, "size: 3 components"));
    }
  }
}

// The layout that ITK and ANTs expect, byte for byte where it matters.
TEST_F(NiftiTest, FieldLayout) {
  const HostField field = RandomField(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(WriteField(Path("f.nii"), field), Succeeds());
  const std::string file = Get(Path("f.nii"));
  nifti_1_header h;
  std::memcpy(&h, file.data(), sizeof(h));
  const short dim[8] = {5, 4, 3, 2, 1, 3, 1, 1};
  EXPECT_TRUE(std::equal(dim, dim + 8, h.dim));
  EXPECT_EQ(h.intent_code, 1007);
  EXPECT_EQ(h.datatype, DT_FLOAT32);
  ASSERT_EQ(file.size(), 352u + 24 * 3 * 4);
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < 24; ++i) {
      float v;
      std::memcpy(&v, file.data() + 352 + 4 * (24 * c + i), 4);
      EXPECT_EQ(v, field.displacement[3 * i + c]);
    }
  }
}

TEST_F(NiftiTest, FieldsOfOthers) {
  const auto field_of = [&](const std::function<void(nifti_1_header&)>& change, int values, bool as_double = false,
                            bool swapped = false) {
    nifti_1_header h = SomeHeader();
    h.dim[0] = 5, h.dim[5] = 3;
    h.datatype = as_double ? DT_FLOAT64 : DT_FLOAT32;
    h.bitpix = as_double ? 64 : 32;
    h.intent_code = NIFTI_INTENT_VECTOR;
    change(h);
    std::string file = FileOf(h, 0);
    for (int i = 0; i < values; ++i) {
      const double d = i + 0.5;
      const float f = static_cast<float>(d);
      file.append(as_double ? reinterpret_cast<const char*>(&d) : reinterpret_cast<const char*>(&f), as_double ? 8 : 4);
    }
    return ReadField(Put("f.nii", swapped ? OtherByteOrder(file, as_double ? 8 : 4) : file));
  };
  const auto nothing = [](nifti_1_header&) {};
  for (bool as_double : {false, true}) {
    for (bool swapped : {false, true}) {
      const auto field = field_of(nothing, 72, as_double, swapped);
      ASSERT_THAT(field, Succeeds());
      EXPECT_EQ(field->displacement[3 * 5 + 1], 24 + 5 + 0.5f);
    }
  }
  const auto ras = field_of([](auto& h) { h.intent_code = NIFTI_INTENT_DISPVECT; }, 72);
  ASSERT_THAT(ras, Succeeds());
  EXPECT_EQ(ras->displacement[0], -0.5f);
  EXPECT_EQ(ras->displacement[1], -24.5f);
  EXPECT_EQ(ras->displacement[2], 48.5f);
  const auto planar = field_of([](auto& h) { h.dim[3] = 1, h.dim[5] = 2; }, 24);
  ASSERT_THAT(planar, Succeeds());
  EXPECT_EQ(planar->displacement[3 * 11 + 1], 23.5f);
  EXPECT_EQ(planar->displacement[3 * 11 + 2], 0.f);

  EXPECT_THAT(field_of([](auto& h) { h.dim[5] = 2; }, 48), Fails(kInvalid, "size: a displacement field"));
  EXPECT_THAT(field_of([](auto& h) { h.dim[0] = 3; }, 24), Fails(kInvalid, "size: a displacement field"));
  EXPECT_THAT(field_of([](auto& h) { h.dim[4] = 3, h.dim[5] = 1; }, 72), Fails(kInvalid, "size: a displacement"));
  EXPECT_THAT(field_of([](auto& h) { h.intent_code = 0; }, 72), Fails(kInvalid, "intent: is 0"));
  EXPECT_THAT(field_of([](auto& h) { std::memcpy(h.intent_name, "NREG_TRANS", 10); }, 72),
              Fails(kUnimplemented, "intent: "));
  EXPECT_THAT(field_of([](auto& h) { h.xyzt_units = 1; }, 72), Fails(kUnimplemented, "units: "));
  EXPECT_THAT(field_of([](auto& h) { h.datatype = DT_INT32; }, 72), Fails(kUnimplemented, "datatype: "));
  EXPECT_THAT(field_of(nothing, 71), Fails(kDataLoss, "data: ends after 284 of 288"));
  HostField broken = RandomField(ObliqueGeometry({4, 3, 2}));
  broken.displacement[3 * 7 + 2] = std::numeric_limits<float>::infinity();
  ASSERT_THAT(WriteField(Path("g.nii"), broken), Succeeds());
  EXPECT_THAT(ReadField(Path("g.nii")), Fails(kInvalid, "displacement: voxel 7"));
}

HostVelocity RandomVelocity(const Geometry& geometry) {
  AffineMap affine = AffineMap::Identity();
  affine.m[0][1] = 1.0 / 3;
  affine.m[2][3] = -1e-7 / 7;
  return {affine, geometry, RandomFloats(3 * geometry.voxels(), 6, -20, 20)};
}

absl::Status Write(const std::string& path, const HostVelocity& v) {
  return WriteVelocity(path, v.affine, v.geometry, v.velocity.data());
}

TEST_F(NiftiTest, VelocitiesComeBackWithTheirMapAndAreNoDisplacements) {
  for (const Geometry& geometry : {ObliqueGeometry({7, 5, 3}, true), ObliqueGeometry({9, 4, 1})}) {
    const HostVelocity velocity = RandomVelocity(geometry);
    for (const char* name : {"v.nii", "v.nii.gz"}) {
      ASSERT_THAT(Write(Path(name), velocity), Succeeds());
      EXPECT_TRUE(*HoldsVelocity(Path(name)));
      const auto read = ReadVelocity(Path(name));
      ASSERT_THAT(read, Succeeds());
      ExpectNear(read->geometry, geometry);
      EXPECT_EQ(read->velocity, velocity.velocity);
      for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < 4; ++c) EXPECT_EQ(read->affine.m[r][c], velocity.affine.m[r][c]);
      }
      EXPECT_THAT(ReadField(Path(name)), Fails(kInvalid, "intent: a velocity"));
    }
  }
  ASSERT_THAT(WriteField(Path("f.nii"), RandomField(ObliqueGeometry({4, 3, 2}))), Succeeds());
  EXPECT_FALSE(*HoldsVelocity(Path("f.nii")));
  EXPECT_THAT(ReadVelocity(Path("f.nii")), Fails(kInvalid, "intent: must be"));
  EXPECT_FALSE(HoldsVelocity(Path("none.nii")).ok());
}

// Other programs find the voxels behind a comment of theirs.
TEST_F(NiftiTest, VelocityLayout) {
  const HostVelocity velocity = RandomVelocity(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(Write(Path("v.nii"), velocity), Succeeds());
  const std::string file = Get(Path("v.nii"));
  nifti_1_header h;
  std::memcpy(&h, file.data(), sizeof(h));
  EXPECT_EQ(h.intent_code, 1007);
  EXPECT_STREQ(h.intent_name, "velocity");
  int32_t extension[2];
  std::memcpy(extension, file.data() + 352, 8);
  EXPECT_EQ(file.substr(348, 4), std::string("\1\0\0\0", 4));
  EXPECT_EQ(extension[0] % 16, 0);
  EXPECT_EQ(extension[1], 6);
  EXPECT_EQ(h.vox_offset, 352 + extension[0]);
  ASSERT_EQ(file.size(), h.vox_offset + 24 * 3 * 4);
  float v;
  std::memcpy(&v, file.data() + 352 + extension[0] + 4 * (24 * 2 + 5), 4);
  EXPECT_EQ(v, velocity.velocity[3 * 5 + 2]);
  nifti_image* const image = nifti_image_read(Path("v.nii").c_str(), 1);
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->num_ext, 1);
  EXPECT_EQ(static_cast<const float*>(image->data)[24 * 2 + 5], v);
  nifti_image_free(image);
}

TEST_F(NiftiTest, BrokenVelocitiesAreRefused) {
  const HostVelocity velocity = RandomVelocity(ObliqueGeometry({4, 3, 2}));
  ASSERT_THAT(Write(Path("v.nii"), velocity), Succeeds());
  const std::string good = Get(Path("v.nii"));
  const auto changed = [&](size_t at, const std::string& bytes) {
    std::string file = good;
    file.replace(at, bytes.size(), bytes);
    return ReadVelocity(Put("w.nii", file));
  };
  const auto number = [](int32_t n) { return std::string(reinterpret_cast<const char*>(&n), 4); };
  EXPECT_THAT(changed(348, std::string(1, '\0')), Fails(kInvalid, "extension: the affine map"));
  for (const int32_t size : {0, -16, 8, 17, 1 << 30, 4096}) {
    EXPECT_THAT(changed(352, number(size)), Fails(kInvalid, "extension: its size")) << size;
  }
  EXPECT_THAT(changed(356, number(4)), Fails(kInvalid, "extension: the affine map"));
  EXPECT_THAT(changed(360, "x"), Fails(kInvalid, "extension: the affine map"));
  const size_t row = good.find('\n', 360) + 1;
  EXPECT_THAT(changed(row, "x"), Fails(kInvalid, "extension: line 2"));
  EXPECT_THAT(changed(row, std::string(40, '\0')), Fails(kInvalid, "extension: matrix"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, 350))), Fails(kDataLoss, "header: is cut short"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, 400))), Fails(kDataLoss, "extension: is cut short"));
  EXPECT_THAT(ReadVelocity(Put("w.nii", good.substr(0, good.size() - 1))), Fails(kDataLoss, "data: "));

  // Someone else's extension before ours.
  std::string two = good;
  two.insert(352, number(32) + number(4) + std::string(24, 'd'));
  nifti_1_header h;
  std::memcpy(&h, two.data(), sizeof(h));
  h.vox_offset += 32;
  two.replace(0, sizeof(h), reinterpret_cast<const char*>(&h), sizeof(h));
  const auto read = ReadVelocity(Put("two.nii", two));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->velocity, velocity.velocity);
  EXPECT_EQ(read->affine.m[0][1], 1.0 / 3);

  std::mt19937 engine(3);
  for (int round = 0; round < 500; ++round) {
    std::string broken = good;
    for (int change = 0; change < 1 + round % 4; ++change) broken[engine() % 760] = static_cast<char>(engine());
    (void)ReadVelocity(Put("v.nii", broken), 1 << 20);
  }
}

}  // namespace
}  // namespace intrawarp::io
