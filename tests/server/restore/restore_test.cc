// SPDX-License-Identifier: Apache-2.0
// Objects that a state directory in memory keeps, on a CPU device without a server.
#include "server/restore/restore.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/schedule/scheduler.h"
#include "io/file/digest.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/device/served_device.h"
#include "server/object/object_spec.h"
#include "server/restore/upload_header.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/matrix_store.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/server/partial_context.h"
#include "tests/server/state/test_files.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using state::ObjectKind;

constexpr int64_t kMemory = int64_t{64} << 20;

Geometry Grid() {
  Geometry grid;
  grid.size = {9, 8, 7};
  grid.spacing = {1, 2, 3};
  return grid;
}

std::string Floats(int64_t count, float first = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i % 100) / 64;
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

v1::UploadHeader VolumeHeader() {
  v1::UploadHeader header;
  *header.mutable_volume()->mutable_geometry() = GeometryToProto(Grid());
  header.mutable_volume()->set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  return header;
}

v1::UploadHeader FieldHeaderOf(v1::FieldEncoding encoding) {
  v1::UploadHeader header;
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  *field.mutable_geometry() = GeometryToProto(Grid());
  field.set_encoding(encoding);
  field.set_total_bytes(12 * Grid().voxels());
  if (encoding != v1::FIELD_ENCODING_FLOAT32) *field.mutable_affine() = AffineMapToProto(AffineMap::Identity());
  return header;
}

// 2 x 3 with one entry.
v1::UploadHeader MatrixHeader() {
  v1::UploadHeader header;
  v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
  shape.set_rows(2);
  shape.set_columns(3);
  shape.set_entries(1);
  shape.set_value_type(v1::VALUE_TYPE_FLOAT32);
  return header;
}
std::string MatrixBytes(int32_t column = 2) {
  const int64_t offsets[] = {0, 0, 1};
  const float value = 1.5;
  std::string bytes(reinterpret_cast<const char*>(offsets), sizeof(offsets));
  bytes.append(reinterpret_cast<const char*>(&column), sizeof(column));
  return bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class RestoreTest : public testing::Test {
 protected:
  RestoreTest() {
    EXPECT_TRUE(served_.Start(DefaultScheduling(*device_)).ok());
    EXPECT_TRUE(durable_.Open(files_, "d", seams_).ok());
    parts_.devices = &devices_;
    parts_.ledger = &ledger_;
    parts_.volumes = &volumes_;
    parts_.matrices = &matrices_;
    parts_.transforms = &transforms_;
    parts_.limits = &limits_;
    parts_.seams = &seams_;
    parts_.durable = &durable_;
    devices_.Add(served_.ContextIn(parts_.Make(), 0));
  }
  ~RestoreTest() override {
    served_.Shutdown();
    durable_.Shutdown();
  }

  // The content of an object, as an upload brought it.
  DurableContent Content(v1::UploadHeader header, const std::string& bytes) {
    const std::string digest = io::Sha256Of(bytes.data(), bytes.size());
    header.set_upload_id("an upload");
    header.set_total_bytes(static_cast<int64_t>(bytes.size()));
    header.set_sha256(digest);
    const auto kept = durable_.Keep(digest, bytes);
    EXPECT_TRUE(kept.ok()) << kept.status();
    payloads_.push_back(*kept);
    return {header.SerializeAsString(), digest, static_cast<int64_t>(bytes.size())};
  }
  // A row of the catalogue, as the server before wrote it.
  void Put(ObjectKind kind, const std::string& id, const DurableContent& content, state::ObjectRow row = {}) {
    row.kind = kind;
    row.id = id;
    row.owner = "ann";
    row.header = content.header;
    row.create_time = 1'700'000'000'000'000'000;
    if (row.identity.empty()) row.identity = "identity of " + id;
    for (const auto& payload : payloads_) {
      if (payload->bytes() != content.payload_bytes || payload->digest() != content.payload) continue;
      EXPECT_TRUE(durable_.state().Commit(row, *payload).ok());
      return;
    }
    FAIL() << "no payload of " << id;
  }
  absl::Status Restore() {
    ServerContext context = parts_.Make();
    return RestoreObjects(context);
  }
  std::string Bits(const void* data, int64_t bytes) {
    OwnedContext owned = *OwnedContext::Create(*device_, 16);
    std::string host(static_cast<size_t>(bytes), '?');
    EXPECT_TRUE(device_->Copy(host.data(), data, host.size(), owned.context().stream()).ok());
    EXPECT_TRUE(device_->Synchronize(owned.context().stream()).ok());
    return host;
  }
  template <typename Store>
  absl::Status Found(const Store& store, const std::string& id) {
    return store.FindOf("ann", id).status();
  }
  void FlipPayload(const DurableContent& content) {
    disk_.FlipBit("d/spool/" + absl::BytesToHexString(content.payload), 5);
  }

  FaultyDevice* const device_ = new FaultyDevice(*OpenDevice("cpu"));  // which served_ owns
  ServedDevice served_{std::unique_ptr<Device>(device_), {kMemory, kMemory}, WatchdogOptions(), nullptr};
  const Seams seams_ = SystemSeams();
  state::MemoryDisk disk_;
  state::LockedFiles locked_{disk_};
  state::FaultyFiles files_{locked_, state::Fault::kBroken};
  ServerLimits limits_;
  Ledger ledger_{
      {.capacity = {.resident_bytes = kMemory, .workspace_bytes = kMemory, .uploading_bytes = 1000, .transforms = 3}}};
  VolumeStore volumes_;
  MatrixStore matrices_;
  TransformStore transforms_;
  DurableObjects durable_;
  std::vector<std::shared_ptr<const state::DurablePayload>> payloads_;
  PartialContext parts_;
  DeviceSet devices_;
};

TEST_F(RestoreTest, EveryObjectIsTheOneThatItWas) {
  const std::string voxels = Floats(Grid().voxels()), field = Floats(3 * Grid().voxels(), -1);
  state::ObjectRow row;
  row.id_was_chosen = true;
  Put(ObjectKind::kVolume, "ct", Content(VolumeHeader(), voxels), row);
  Put(ObjectKind::kSparseMatrix, "matrix", Content(MatrixHeader(), MatrixBytes()));
  row = {};
  v1::Transform described;
  described.mutable_report()->set_device("cuda:0");
  row.description = described.SerializeAsString();
  row.request_id = "a request";
  row.request_fingerprint = "its fingerprint";
  row.expire_time = std::numeric_limits<int64_t>::max();
  Put(ObjectKind::kTransform, "field", Content(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), field), row);
  v1::UploadHeader affine;
  *affine.mutable_transform()->mutable_affine() = AffineMapToProto(AffineMap::Identity());
  Put(ObjectKind::kTransform, "affine", Content(affine, ""));
  ASSERT_TRUE(Restore().ok());

  const auto ct = volumes_.FindOf("ann", "ct");
  ASSERT_TRUE(ct.ok()) << ct.status();
  EXPECT_TRUE((*ct)->id_was_chosen);
  EXPECT_EQ((*ct)->digest, "identity of ct");
  EXPECT_EQ((*ct)->content_digest, io::Sha256Of(voxels.data(), voxels.size()));
  EXPECT_EQ(NanosecondsOf((*ct)->create_time), 1'700'000'000'000'000'000);
  EXPECT_EQ(Bits((*ct)->image.volume().data, static_cast<int64_t>(voxels.size())), voxels);
  ASSERT_NE((*ct)->residency, nullptr) << "it can be loaded again";
  EXPECT_EQ((*ct)->residency->state(), Residency::State::kResident);
  const auto matrix = matrices_.FindOf("ann", "matrix");
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_FALSE((*matrix)->id_was_chosen);
  EXPECT_EQ((*matrix)->matrix.view().entries, 1);
  const auto stored = transforms_.FindOf("ann", "field");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(Bits((*stored)->transform.displacement().data, static_cast<int64_t>(field.size())), field);
  EXPECT_EQ((*stored)->report->device(), "cuda:0");
  ASSERT_TRUE((*stored)->request.has_value());
  EXPECT_EQ((*stored)->request->id, "a request");
  EXPECT_EQ((*stored)->request->owner, "ann");
  EXPECT_TRUE((*stored)->expiry.has_value());
  EXPECT_TRUE(transforms_.FindOf("ann", "affine").ok());
  EXPECT_FALSE((*transforms_.FindOf("ann", "affine"))->expiry);

  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 2);
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  EXPECT_GE(ledger_.in_use(Resource::kResident), static_cast<int64_t>(voxels.size() + field.size()));
  EXPECT_TRUE(absl::IsNotFound(volumes_.FindOf("bob", "ct").status()));
}

TEST_F(RestoreTest, AnObjectThatCannotBeLoadedIsDamagedAndKeepsItsId) {
  const DurableContent content = Content(VolumeHeader(), Floats(Grid().voxels()));
  Put(ObjectKind::kVolume, "flipped", content);
  Put(ObjectKind::kVolume, "whole", Content(VolumeHeader(), Floats(Grid().voxels(), 3)));
  DurableContent header = Content(MatrixHeader(), MatrixBytes());
  header.header = "\xff";
  Put(ObjectKind::kSparseMatrix, "header", header);
  Put(ObjectKind::kSparseMatrix, "column", Content(MatrixHeader(), MatrixBytes(3)));
  DurableContent other = Content(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), Floats(3 * Grid().voxels()));
  other.header = Content(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), Floats(3 * Grid().voxels(), 2)).header;
  Put(ObjectKind::kTransform, "other", other);
  state::ObjectRow row;
  row.description = "\xff";
  Put(ObjectKind::kTransform, "described",
      Content(FieldHeaderOf(v1::FIELD_ENCODING_FLOAT32), Floats(3 * Grid().voxels(), 4)), row);
  FlipPayload(content);
  ASSERT_TRUE(Restore().ok()) << "the others are there";

  EXPECT_TRUE(volumes_.FindOf("ann", "whole").ok());
  for (const absl::Status& status : {Found(volumes_, "flipped"), Found(matrices_, "header"), Found(matrices_, "column"),
                                     Found(transforms_, "described")}) {
    EXPECT_EQ(ReasonOf(status), v1::OBJECT_DAMAGED) << status;
  }
  auto volume = std::make_shared<StoredVolume>();
  volume->id = "flipped";
  volume->owner = "ann";
  EXPECT_TRUE(absl::IsAlreadyExists(volumes_.Insert(volume)));
  EXPECT_TRUE(volumes_.Erase("flipped", Identity{"ann", Roles()}).ok());
  EXPECT_TRUE(volumes_.Insert(volume).ok());
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  // A payload of another content than its header's has the right size, and its own digest.
  EXPECT_TRUE(Found(transforms_, "other").ok());
}

TEST_F(RestoreTest, AHeaderAndAPayloadOfAnotherSizeDoNotMatch) {
  // Behind a whole matrix the payload has more.
  DurableContent content = Content(MatrixHeader(), MatrixBytes() + "more");
  content.header = Content(MatrixHeader(), MatrixBytes()).header;
  Put(ObjectKind::kSparseMatrix, "matrix", content);
  ASSERT_TRUE(Restore().ok());
  EXPECT_EQ(ReasonOf(Found(matrices_, "matrix")), v1::OBJECT_DAMAGED);
  EXPECT_EQ(ledger_.in_use(Resource::kResident), 0);
}

TEST_F(RestoreTest, WhatWasAcceptedOnceIsNotRefusedByALimitOfUploads) {
  limits_.max_volume_bytes = limits_.max_matrix_bytes = 1;
  Put(ObjectKind::kVolume, "ct", Content(VolumeHeader(), Floats(Grid().voxels())));
  Put(ObjectKind::kSparseMatrix, "matrix", Content(MatrixHeader(), MatrixBytes()));
  Put(ObjectKind::kTransform, "field",
      Content(FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY), Floats(3 * Grid().voxels())));
  ASSERT_TRUE(Restore().ok());
  EXPECT_TRUE(Found(volumes_, "ct").ok());
  EXPECT_TRUE(Found(matrices_, "matrix").ok());
  EXPECT_TRUE(Found(transforms_, "field").ok());
  EXPECT_GT(ledger_.use(Resource::kUploading).peak, 0);
  EXPECT_LE(ledger_.use(Resource::kUploading).peak, 1000) << "one that is larger takes all of it";
}

// More than there are places for: those that find none are lost, and nobody else.
TEST_F(RestoreTest, WithoutRoomAnObjectIsLostForThisStart) {
  for (int i = 0; i < 5; ++i) {
    v1::UploadHeader affine;
    AffineMap map = AffineMap::Identity();
    map.m[0][3] = i;
    *affine.mutable_transform()->mutable_affine() = AffineMapToProto(map);
    Put(ObjectKind::kTransform, "t" + std::to_string(i), Content(affine, ""));
  }
  ASSERT_TRUE(Restore().ok());
  int there = 0, lost = 0;
  for (int i = 0; i < 5; ++i) {
    const absl::Status found = Found(transforms_, "t" + std::to_string(i));
    ++(found.ok() ? there : lost);
    EXPECT_EQ(found.ok(), ReasonOf(found) != v1::OBJECT_DAMAGED) << found;
  }
  EXPECT_EQ(there, 3);
  EXPECT_EQ(lost, 2);
  EXPECT_EQ(durable_.state().List()->size(), 5) << "the next start tries again";
}

TEST_F(RestoreTest, ATransformOfASessionTakesItsRoomFromWhoeverAsks) {
  const std::string field = Floats(3 * Grid().voxels());
  const DurableContent content = Content(FieldHeaderOf(v1::FIELD_ENCODING_VELOCITY), field);
  v1::Transform described;
  described.mutable_report()->set_device("cpu");
  int64_t asked = -1;
  const ReserveFn reserve = [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<Grant>> {
    asked = bytes;
    return std::make_shared<Grant>(*ledger_.Admit(Claim{{.resident_bytes = bytes, .transforms = 1}}));
  };
  auto made = MakeDurableTransform(devices_[0], content, described.SerializeAsString(), reserve);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(asked, 3 * static_cast<int64_t>(field.size())) << "with its exponentials";
  EXPECT_EQ(Bits((*made)->transform.velocity().data, static_cast<int64_t>(field.size())), field);
  EXPECT_EQ((*made)->report->device(), "cpu");
  EXPECT_EQ(ledger_.in_use(Resource::kResident), asked);
  EXPECT_EQ(ledger_.in_use(Resource::kTransforms), 1);
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
  EXPECT_EQ(ledger_.in_use(Resource::kWorkspace), 0);
  EXPECT_EQ(transforms_.size(), 0) << "in no store";
  *made = nullptr;
  EXPECT_EQ(ledger_.in_use(Resource::kResident), 0);

  const auto status = [&](const DurableContent& from, const std::string& description, const ReserveFn& room) {
    return MakeDurableTransform(devices_[0], from, description, room).status();
  };
  EXPECT_TRUE(absl::IsDataLoss(status(content, "\xff", reserve)));
  EXPECT_TRUE(absl::IsDataLoss(status({"\xff", content.payload, content.payload_bytes}, "", reserve)));
  EXPECT_TRUE(absl::IsDataLoss(status(Content(VolumeHeader(), Floats(Grid().voxels())), "", reserve)));
  EXPECT_TRUE(absl::IsDataLoss(status({content.header, content.payload, content.payload_bytes - 1}, "", reserve)));
  const ReserveFn full = [](int64_t) -> absl::StatusOr<std::shared_ptr<Grant>> {
    return absl::ResourceExhaustedError("no room");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(status(content, "", full)));
  FlipPayload(content);
  EXPECT_TRUE(absl::IsDataLoss(status(content, "", reserve)));
  EXPECT_EQ(ledger_.in_use(Resource::kResident), 0);
  EXPECT_EQ(ledger_.in_use(Resource::kUploading), 0);
}

TEST_F(RestoreTest, AVolumeThatLeftTheDeviceComesBackAsItWas) {
  const std::string voxels = Floats(Grid().voxels());
  const DurableContent content = Content(VolumeHeader(), voxels);
  Put(ObjectKind::kVolume, "ct", content);
  ASSERT_TRUE(Restore().ok());
  std::shared_ptr<const StoredVolume> first = *volumes_.FindOf("ann", "ct");
  const auto again = MakeDurableVolume(devices_[0], *first);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->id, "ct");
  EXPECT_EQ((*again)->owner, "ann");
  EXPECT_EQ((*again)->digest, first->digest);
  EXPECT_EQ((*again)->create_time, first->create_time);
  EXPECT_EQ((*again)->residency, first->residency) << "one volume in two forms";
  EXPECT_EQ(Bits((*again)->image.volume().data, static_cast<int64_t>(voxels.size())), voxels);
  const auto others = ledger_.Admit(Claim{{.resident_bytes = ledger_.available(Resource::kResident)}});
  ASSERT_TRUE(others.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(MakeDurableVolume(devices_[0], *first).status()));
}

}  // namespace
}  // namespace intrawarp::server
