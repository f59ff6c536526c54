// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_kind.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/transform/velocity.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/engine/device_test.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;
using NewTransform = absl::StatusOr<std::unique_ptr<NewObjectOf<StoredTransform>>>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Int3 kSize = {5, 4, 6};

AffineMap Map() {
  AffineMap map = AffineMap::Identity();
  map.m[0][1] = 0.25;
  map.m[2][3] = -7;
  return map;
}

v1::UploadHeader Header() {
  v1::UploadHeader header;
  header.set_upload_id("an upload");
  header.set_sha256(std::string(32, 'd'));
  return header;
}

v1::UploadHeader AffineHeader() {
  v1::UploadHeader header = Header();
  *header.mutable_transform()->mutable_affine() = AffineMapToProto(Map());
  return header;
}

// Announces the bytes of the grid, too.
void SetGrid(const Geometry& grid, v1::UploadHeader& header) {
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  *field.mutable_geometry() = GeometryToProto(grid);
  field.set_total_bytes(12 * grid.voxels());
  header.set_total_bytes(12 * grid.voxels());
}

v1::UploadHeader FieldHeaderOf(v1::FieldEncoding encoding, Int3 size = kSize) {
  v1::UploadHeader header = Header();
  SetGrid(ObliqueGeometry(size), header);
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  field.set_encoding(encoding);
  if (encoding != v1::FIELD_ENCODING_FLOAT32) *field.mutable_affine() = AffineMapToProto(Map());
  return header;
}

// The domain of control points.
Geometry Domain() { return ObliqueGeometry({17, 9, 23}); }

v1::UploadHeader ControlPoints() {
  v1::UploadHeader header = FieldHeaderOf(v1::FIELD_ENCODING_CONTROL_POINTS);
  *header.mutable_transform()->mutable_field()->mutable_domain() = GeometryToProto(Domain());
  return header;
}

// Values of a field, within a voxel or two.
std::vector<float> Values(int64_t count) { return RandomFloats(static_cast<size_t>(count), 7, -1.5, 1.5); }

class TransformUploadTest : public testing::Test {
 protected:
  NewTransform Parse(const v1::UploadHeader& header) { return ParseTransformUpload(header, limits_); }
  void ExpectRefused(const std::string& field, const v1::UploadHeader& header) {
    const absl::Status status = Parse(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << status;
    EXPECT_EQ(FieldOf(status), field) << status;
  }
  void ExpectRefused(const std::string& field, v1::UploadHeader header,
                     const std::function<void(v1::FieldHeader&)>& change) {
    change(*header.mutable_transform()->mutable_field());
    ExpectRefused(field, header);
  }
  // OK for control points on this grid, whose domain has `domain` voxels where it is given.
  absl::Status ControlGrid(Int3 size, std::optional<Int3> domain) {
    v1::UploadHeader header = FieldHeaderOf(v1::FIELD_ENCODING_CONTROL_POINTS, size);
    if (domain) {
      *header.mutable_transform()->mutable_field()->mutable_domain() = GeometryToProto(ObliqueGeometry(*domain));
    }
    return Parse(header).status();
  }
  std::string IdentityOf(const v1::UploadHeader& header) {
    const NewTransform made = Parse(header);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? (*made)->spec().identity_digest : "";
  }

  ServerLimits limits_;
};

TEST_F(TransformUploadTest, EachFormClaimsWhatItTakes) {
  constexpr int64_t kBytes = 12 * 5 * 4 * 6;
  const NewTransform affine = Parse(AffineHeader());
  ASSERT_TRUE(affine.ok()) << affine.status();
  EXPECT_EQ((*affine)->spec().total_bytes, 0);
  EXPECT_EQ((*affine)->spec().resident_bytes, 0);
  EXPECT_EQ((*affine)->spec().workspace_bytes, 0);
  EXPECT_EQ((*affine)->spec().transforms, 1) << "an affine map takes no device memory, but a place";
  EXPECT_FALSE((*affine)->JobWorkspaceBytes());
  for (const v1::UploadHeader& header : {FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), ControlPoints()}) {
    const NewTransform field = Parse(header);
    ASSERT_TRUE(field.ok()) << field.status();
    EXPECT_EQ((*field)->spec().total_bytes, kBytes);
    EXPECT_EQ((*field)->spec().resident_bytes, kBytes);
    EXPECT_EQ((*field)->spec().transforms, 1);
    EXPECT_FALSE((*field)->JobWorkspaceBytes()) << "it is copied and no more";
  }
  const NewTransform velocity = Parse(FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY));
  ASSERT_TRUE(velocity.ok()) << velocity.status();
  EXPECT_EQ((*velocity)->spec().total_bytes, kBytes);
  EXPECT_EQ((*velocity)->spec().resident_bytes, 3 * kBytes) << "with its exponentials";
  EXPECT_EQ((*velocity)->spec().workspace_bytes, VelocityTransformWorkspaceBytes(kSize));
  EXPECT_EQ((*velocity)->JobWorkspaceBytes(), VelocityTransformWorkspaceBytes(kSize));
}

TEST_F(TransformUploadTest, AnErrorNamesTheField) {
  const v1::UploadHeader displacement = FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), points = ControlPoints();
  const v1::UploadHeader velocity = FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY);
  ExpectRefused("transform.content", Header());
  v1::UploadHeader header = AffineHeader();
  header.mutable_transform()->mutable_affine()->set_values(0, 0);
  header.mutable_transform()->mutable_affine()->set_values(1, 0);
  ExpectRefused("transform.affine.values", header);
  header.mutable_transform()->mutable_affine()->clear_values();
  ExpectRefused("transform.affine.values", header);

  ExpectRefused("transform.field.geometry.spacing", displacement,
                [](v1::FieldHeader& field) { field.mutable_geometry()->set_spacing(1, -1); });
  ExpectRefused("transform.field.geometry.size", displacement,
                [](v1::FieldHeader& field) { field.mutable_geometry()->set_size(2, 0); });
  for (const v1::FieldEncoding encoding : {v1::FIELD_ENCODING_UNSPECIFIED, v1::FIELD_ENCODING_INT16}) {
    ExpectRefused("transform.field.encoding", displacement,
                  [&](v1::FieldHeader& field) { field.set_encoding(encoding); });
  }
  ExpectRefused("transform.field.total_bytes", displacement,
                [](v1::FieldHeader& field) { field.set_total_bytes(field.total_bytes() - 1); });
  for (const v1::UploadHeader& native : {points, velocity}) {
    ExpectRefused("transform.field.affine.values", native, [](v1::FieldHeader& field) { field.clear_affine(); });
    ExpectRefused("transform.field.affine.values", native,
                  [](v1::FieldHeader& field) { field.mutable_affine()->set_values(10, 0); });
  }
  ExpectRefused("transform.field.domain", velocity,
                [](v1::FieldHeader& field) { *field.mutable_domain() = field.geometry(); });
  ExpectRefused("transform.field.domain.origin", points,
                [](v1::FieldHeader& field) { field.mutable_domain()->set_origin(0, 1e9); });

  header = displacement;
  header.set_total_bytes(header.total_bytes() + 1);
  ExpectRefused("total_bytes", header);
  header = AffineHeader();
  header.set_total_bytes(1);
  ExpectRefused("total_bytes", header);
  header = AffineHeader();
  header.set_sha256("short");
  ExpectRefused("sha256", header);
}

TEST_F(TransformUploadTest, AnAxisOfControlPointsHasFourOrNoSpline) {
  EXPECT_TRUE(ControlGrid({4, 4, 4}, std::nullopt).ok());
  EXPECT_TRUE(ControlGrid({4, 4, 1}, std::nullopt).ok());
  EXPECT_TRUE(ControlGrid({1, 1, 4}, std::nullopt).ok());
  EXPECT_TRUE(ControlGrid({4, 1, 4}, Int3{9, 1, 9}).ok());
  for (int axis = 0; axis < 3; ++axis) {
    for (const int few : {2, 3}) {
      Int3 size = {4, 4, 4};
      size[axis] = few;
      const absl::Status status = ControlGrid(size, std::nullopt);
      EXPECT_EQ(FieldOf(status), "transform.field.geometry.size") << axis << " " << few;
      EXPECT_THAT(std::string(status.message()), HasSubstr("must be 4 or more")) << axis << " " << few;
    }
    // A domain with more voxels than one needs a spline there.
    Int3 size = {4, 4, 4}, domain = {9, 9, 9};
    size[axis] = 1;
    EXPECT_EQ(FieldOf(ControlGrid(size, domain)), "transform.field.geometry.size") << axis;
    domain[axis] = 1;
    EXPECT_TRUE(ControlGrid(size, domain).ok()) << axis;
  }
  EXPECT_EQ(FieldOf(ControlGrid({1, 1, 1}, std::nullopt)), "transform.field.geometry.size");
  EXPECT_EQ(FieldOf(ControlGrid({1, 1, 1}, Int3{1, 1, 1})), "transform.field.geometry.size");
}

TEST_F(TransformUploadTest, AFieldHasAsManyVoxelsAsAVolumeMay) {
  limits_.max_volume_bytes = 4 * 5 * 4 * 6;
  for (const v1::UploadHeader& header :
       {FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), ControlPoints(), FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY)}) {
    EXPECT_TRUE(Parse(header).ok()) << Parse(header).status();
  }
  limits_.max_volume_bytes -= 1;
  for (const v1::UploadHeader& header :
       {FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), ControlPoints(), FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY)}) {
    ExpectRefused("transform.field.geometry.size", header);
  }
  // The largest grid that there is: its bytes do not overflow, and nothing is allocated for it.
  v1::UploadHeader largest = Header();
  SetGrid(ObliqueGeometry({kMaxAxis, kMaxAxis, kMaxAxis}), largest);
  largest.mutable_transform()->mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  ExpectRefused("transform.field.geometry.size", largest);
}

TEST_F(TransformUploadTest, WhateverChangesTheTransformChangesItsIdentity) {
  std::vector<v1::UploadHeader> all = {AffineHeader(), FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32),
                                       FieldHeaderOf(v1::FIELD_ENCODING_CONTROL_POINTS), ControlPoints(),
                                       FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY)};
  const auto add = [&](v1::UploadHeader header, const std::function<void(v1::FieldHeader&)>& change) {
    change(*header.mutable_transform()->mutable_field());
    all.push_back(std::move(header));
  };
  add(all[1], [](v1::FieldHeader& field) { field.mutable_geometry()->set_spacing(2, 3); });
  add(all[1], [](v1::FieldHeader& field) { field.mutable_geometry()->set_origin(0, 3); });
  add(all[1], [](v1::FieldHeader& field) {
    *field.mutable_geometry() = GeometryToProto(ObliqueGeometry(kSize, /*left_handed=*/true));
  });
  all.push_back(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32, {4, 5, 6}));
  add(all[3], [](v1::FieldHeader& field) { field.mutable_domain()->set_size(0, 16); });
  add(all[3], [](v1::FieldHeader& field) { field.mutable_affine()->set_values(3, 0.5); });
  add(all[4], [](v1::FieldHeader& field) { field.mutable_affine()->set_values(3, 0.5); });
  all.push_back(AffineHeader());
  all.back().mutable_transform()->mutable_affine()->set_values(11, -7.5);
  all.push_back(AffineHeader());
  all.back().set_sha256(std::string(32, 'e'));
  std::set<std::string> identities;
  for (const v1::UploadHeader& header : all) identities.insert(IdentityOf(header));
  EXPECT_EQ(identities.size(), all.size());
  EXPECT_EQ(identities.count(""), 0);
}

TEST_F(TransformUploadTest, NamesAndTheSignOfAZeroAreNotPartOfTheIdentity) {
  v1::UploadHeader header = FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY);
  const std::string identity = IdentityOf(header);
  header.set_id("mine");
  header.set_upload_id("another upload");
  header.mutable_ttl()->set_seconds(60);
  EXPECT_EQ(IdentityOf(header), identity);
  header.mutable_transform()->mutable_field()->mutable_affine()->set_values(2, -0.0);
  EXPECT_EQ(IdentityOf(header), identity);
  v1::Geometry& grid = *header.mutable_transform()->mutable_field()->mutable_geometry();
  ASSERT_EQ(grid.direction_size(), 9);
  int zeros = 0;
  for (double& value : *grid.mutable_direction()) {
    if (value != 0) continue;
    value = -0.0;
    ++zeros;
  }
  EXPECT_GT(zeros, 0);
  EXPECT_EQ(IdentityOf(header), identity);
}

TEST_F(TransformUploadTest, EveryComponentIsFinite) {
  const int64_t count = 3 * 5 * 4 * 6;
  for (const v1::UploadHeader& header :
       {FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), ControlPoints(), FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY)}) {
    const NewTransform made = Parse(header);
    ASSERT_TRUE(made.ok()) << made.status();
    std::vector<float> values = Values(count);
    EXPECT_TRUE((*made)->Validate(values.data()).ok());
    for (const size_t at : {size_t{0}, size_t{1}, static_cast<size_t>(count) / 2, static_cast<size_t>(count) - 1}) {
      for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        const float good = std::exchange(values[at], bad);
        const absl::Status status = (*made)->Validate(values.data());
        EXPECT_EQ(FieldOf(status), "field") << at << " " << bad;
        EXPECT_THAT(std::string(status.message()), HasSubstr("NaN or infinite"));
        values[at] = good;
      }
    }
  }
  const NewTransform affine = Parse(AffineHeader());
  ASSERT_TRUE(affine.ok());
  EXPECT_TRUE((*affine)->Validate(nullptr).ok()) << "it has no bytes";
}

TEST_F(TransformUploadTest, AVelocityCrosses4096OfTheShortestVoxelSidesAtMost) {
  const NewTransform velocity = Parse(FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY));
  const NewTransform displacement = Parse(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32));
  ASSERT_TRUE(velocity.ok() && displacement.ok());
  constexpr float kMost = 4096 * 0.75f;
  std::vector<float> values = Values(3 * 5 * 4 * 6);
  for (const float sign : {1.f, -1.f}) {
    values.back() = sign * kMost;
    EXPECT_TRUE((*velocity)->Validate(values.data()).ok());
    values.back() = sign * std::nextafter(kMost, kInfinity);
    EXPECT_EQ(FieldOf((*velocity)->Validate(values.data())), "field");
    EXPECT_THAT(std::string((*velocity)->Validate(values.data()).message()), HasSubstr("4096 voxels (3072 mm)"));
    EXPECT_TRUE((*displacement)->Validate(values.data()).ok());
  }
}

// What a registration made is described beside its content, and comes back with it.
TEST_F(TransformUploadTest, ADescriptionBringsTheReportAndTheDomainOfAnAffineMap) {
  v1::Transform described;
  described.mutable_report()->set_device("cuda:0");
  *described.mutable_domain() = GeometryToProto(Domain());
  NewTransform made = Parse(AffineHeader());
  ASSERT_TRUE(made.ok());
  auto stored = (*made)->Take(Grant(), described.SerializeAsString());
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_TRUE((*stored)->report.has_value());
  EXPECT_EQ((*stored)->report->device(), "cuda:0");
  ASSERT_TRUE((*stored)->transform.domain().has_value());
  EXPECT_EQ(*(*stored)->transform.domain(), Domain());
  EXPECT_EQ((*stored)->transform.affine().m[2][3], -7);

  described.clear_report();
  described.mutable_domain()->set_size(0, -1);
  const auto taken = [&](const std::string& description) {
    return (*Parse(AffineHeader()))->Take(Grant(), description).status();
  };
  EXPECT_EQ(FieldOf(taken(described.SerializeAsString())), "size");
  EXPECT_TRUE(absl::IsDataLoss(taken("\xff damaged"))) << taken("\xff damaged");
  stored = (*Parse(AffineHeader()))->Take(Grant(), "");
  ASSERT_TRUE(stored.ok());
  EXPECT_FALSE((*stored)->report || (*stored)->transform.domain());
}

class TransformKindTest : public DeviceTest {
 protected:
  // The transform of the header and these bytes.
  std::shared_ptr<StoredTransform> Made(const v1::UploadHeader& header, const std::vector<float>& values) {
    NewTransform object = ParseTransformUpload(header, ServerLimits());
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return nullptr;
    EXPECT_OK((*object)->Validate(values.data()));
    StagedUpload upload(values.data(), nullptr);
    EXPECT_OK((*object)->Make(ctx(), upload));
    auto stored = (*object)->Take(Grant(), "");
    EXPECT_TRUE(stored.ok()) << stored.status();
    if (!stored.ok()) return nullptr;
    EXPECT_EQ((*stored)->transform.resident_bytes(), (*object)->spec().resident_bytes) << "what was claimed";
    return *stored;
  }
  // The bits of a field on the device.
  std::string Bits(const ConstFieldView& field) {
    const std::vector<float> values = Download(field.data, static_cast<size_t>(3 * field.geometry.voxels()));
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  static std::string Bits(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TransformKindTest);

TEST_P(TransformKindTest, AnAffineMapIsMadeOfNothing) {
  const auto stored = Made(AffineHeader(), {});
  ASSERT_NE(stored, nullptr);
  EXPECT_TRUE(stored->transform.is_affine());
  EXPECT_EQ(stored->transform.affine().m[0][1], 0.25);
  EXPECT_FALSE(stored->transform.domain());
}

TEST_P(TransformKindTest, EachFormHasItsValuesAndGrids) {
  const std::vector<float> values = Values(3 * 5 * 4 * 6);
  const Geometry grid = ObliqueGeometry(kSize);
  const auto field = Made(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), values);
  ASSERT_TRUE(field != nullptr && field->transform.has_displacement());
  EXPECT_FALSE(field->transform.has_velocity());
  EXPECT_EQ(Bits(field->transform.displacement()), Bits(values));
  EXPECT_EQ(field->transform.domain(), grid);

  const auto points = Made(ControlPoints(), values);
  ASSERT_TRUE(points != nullptr && points->transform.has_control_grid());
  EXPECT_EQ(Bits(points->transform.control_grid()), Bits(values));
  EXPECT_EQ(points->transform.control_grid().geometry, grid);
  EXPECT_EQ(points->transform.domain(), Domain());
  EXPECT_EQ(points->transform.affine().m[0][1], 0.25);
  const auto free_points = Made(FieldHeaderOf(v1::FIELD_ENCODING_CONTROL_POINTS), values);
  ASSERT_NE(free_points, nullptr);
  EXPECT_FALSE(free_points->transform.domain());
}

TEST_P(TransformKindTest, AVelocityLiesBesideItsExponentials) {
  const std::vector<float> values = Values(3 * 5 * 4 * 6);
  const auto stored = Made(FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY), values);
  ASSERT_TRUE(stored != nullptr && stored->transform.has_velocity());
  EXPECT_EQ(Bits(stored->transform.velocity()), Bits(values));
  EXPECT_EQ(stored->transform.affine().m[2][3], -7);
  Buffer velocity = *device().Allocate(values.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(velocity.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
  const auto wanted = MakeVelocityTransform(ctx(), Map(), std::move(velocity), ObliqueGeometry(kSize));
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  EXPECT_EQ(Bits(stored->transform.displacement()), Bits(wanted->displacement()));
  EXPECT_EQ(Bits(stored->transform.backward()), Bits(wanted->backward()));
}

TEST_P(TransformKindTest, TheReservationGoesWithTheTransform) {
  Ledger ledger({.capacity = {.resident_bytes = 5000, .transforms = 2}});
  NewTransform object = ParseTransformUpload(AffineHeader(), ServerLimits());
  ASSERT_TRUE(object.ok());
  auto grant = ledger.Admit(Claim{{.resident_bytes = 100, .transforms = 1}});
  ASSERT_TRUE(grant.ok());
  auto stored = (*object)->Take(*std::move(grant), "");
  ASSERT_TRUE(stored.ok());
  EXPECT_EQ(ledger.in_use(Resource::kTransforms), 1);
  *stored = nullptr;
  EXPECT_EQ(ledger.in_use(Resource::kTransforms), 0);
  EXPECT_EQ(ledger.in_use(Resource::kResident), 0);
}

// After every failure of the device nothing refers to the upload's memory any more, and nothing is held.
TEST(TransformKindFaults, AnErrorOfTheDeviceIsTheMakers) {
  FaultyDevice device(*OpenDevice("cpu"));
  const std::vector<float> values = Values(3 * 5 * 4 * 6);
  for (const v1::UploadHeader& header : {ControlPoints(), FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY)}) {
    for (const DeviceCall call : {DeviceCall::kAllocate, DeviceCall::kCopy, DeviceCall::kSynchronize}) {
      OwnedContext owned = *OwnedContext::Create(device, size_t{1} << 20);
      const LiveObjects before = device.live();
      const int64_t waits = device.calls(DeviceCall::kSynchronize);
      NewTransform object = ParseTransformUpload(header, ServerLimits());
      ASSERT_TRUE(object.ok());
      device.FailAt(1, absl::ResourceExhaustedError("full"), call);
      StagedUpload upload(values.data(), nullptr);
      EXPECT_TRUE(absl::IsResourceExhausted((*object)->Make(owned.context(), upload)));
      const bool has_copied = call != DeviceCall::kAllocate;
      EXPECT_EQ(device.calls(DeviceCall::kSynchronize) > waits, has_copied);
      device.Disarm();
      *object = nullptr;
      EXPECT_EQ(device.live(), before);
    }
  }
}

}  // namespace
}  // namespace intrawarp::server
