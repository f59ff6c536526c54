// SPDX-License-Identifier: Apache-2.0
// Headers of uploads as hostile as they come: nothing of the sizes that they announce is allocated to refuse them.
#include "server/restore/upload_header.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/geometry/geometry.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"
#include "tests/server/partial_context.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class UploadHeaderTest : public testing::Test {
 protected:
  UploadHeaderTest() {
    limits_.max_volume_bytes = 1 << 20;
    limits_.max_matrix_bytes = 1 << 20;
    parts_.volumes = &volumes_;
    parts_.matrices = &matrices_;
    parts_.transforms = &transforms_;
  }

  absl::StatusOr<std::unique_ptr<NewObject>> Parse(const v1::UploadHeader& header) {
    return ParseUploadHeader(header, limits_, *all_.front());
  }
  ObjectSpec SpecOf(const v1::UploadHeader& header) {
    const auto kind = Parse(header);
    EXPECT_TRUE(kind.ok()) << kind.status();
    return kind.ok() ? (*kind)->spec() : ObjectSpec();
  }
  // `change` makes a header that is refused for this field.
  void ExpectRefused(v1::UploadHeader header, const std::string& field,
                     const std::function<void(v1::UploadHeader&)>& change) {
    change(header);
    const absl::Status status = Parse(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(FieldOf(status), field) << header.ShortDebugString();
  }

  static v1::UploadHeader Header(int64_t bytes) {
    v1::UploadHeader header;
    header.set_upload_id("upload");
    header.set_total_bytes(bytes);
    header.set_sha256(std::string(32, 'd'));
    return header;
  }
  // Three rows with 4 entries: 32, 16 and 16 bytes.
  static v1::UploadHeader Matrix() {
    v1::UploadHeader header = Header(64);
    v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
    shape.set_rows(3);
    shape.set_columns(5);
    shape.set_entries(4);
    shape.set_value_type(v1::VALUE_TYPE_FLOAT32);
    return header;
  }
  static v1::UploadHeader Volume() {
    v1::UploadHeader header = Header(2 * 6 * 5 * 4);
    Geometry geometry;
    geometry.size = {6, 5, 4};
    *header.mutable_volume()->mutable_geometry() = GeometryToProto(geometry);
    header.mutable_volume()->set_pixel_type(v1::PIXEL_TYPE_INT16);
    return header;
  }
  static v1::UploadHeader Affine() {
    v1::UploadHeader header = Header(0);
    *header.mutable_transform()->mutable_affine() = AffineMapToProto(AffineMap::Identity());
    return header;
  }
  static v1::UploadHeader Field() {
    v1::UploadHeader header = Header(12 * 6 * 5 * 4);
    v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
    Geometry geometry;
    geometry.size = {6, 5, 4};
    *field.mutable_geometry() = GeometryToProto(geometry);
    field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
    field.set_total_bytes(12 * 6 * 5 * 4);
    return header;
  }

  const std::vector<std::unique_ptr<Device>> all_ = AllDevices();
  ServerLimits limits_;
  VolumeStore volumes_;
  MatrixStore matrices_;
  TransformStore transforms_;
  PartialContext parts_;
};

TEST_F(UploadHeaderTest, EachContentHasItsKind) {
  EXPECT_EQ(SpecOf(Volume()).total_bytes, 240);
  EXPECT_EQ(SpecOf(Volume()).transforms, 0);
  EXPECT_EQ(SpecOf(Matrix()).total_bytes, 64);
  EXPECT_EQ(SpecOf(Affine()).total_bytes, 0);
  EXPECT_EQ(SpecOf(Affine()).transforms, 1) << "it has a place of its own";
  EXPECT_EQ(SpecOf(Field()).total_bytes, 1440);
  EXPECT_EQ(SpecOf(Field()).resident_bytes, 1440);
  EXPECT_GE(SpecOf(Matrix()).resident_bytes, kLeastObjectBytes);
  EXPECT_GE(SpecOf(Volume()).resident_bytes, kLeastObjectBytes);
}

TEST_F(UploadHeaderTest, AHeaderWithoutContentIsRefused) {
  ExpectRefused(Header(0), "content", [](v1::UploadHeader&) {});
  ExpectRefused(Header(0), "transform.content", [](v1::UploadHeader& header) { header.mutable_transform(); });
}

TEST_F(UploadHeaderTest, WhatEveryContentHasIsCheckedForEach) {
  for (const v1::UploadHeader& header : {Volume(), Matrix(), Affine(), Field()}) {
    for (const int64_t bytes : {header.total_bytes() + 1, int64_t{-1}, kMost}) {
      ExpectRefused(header, "total_bytes", [&](v1::UploadHeader& it) { it.set_total_bytes(bytes); });
    }
    for (const size_t size : {0, 31, 33}) {
      ExpectRefused(header, "sha256", [&](v1::UploadHeader& it) { it.set_sha256(std::string(size, 'd')); });
    }
    ExpectRefused(header, "upload_id", [](v1::UploadHeader& it) { it.clear_upload_id(); });
    ExpectRefused(header, "upload_id", [](v1::UploadHeader& it) { it.set_upload_id(std::string(65, 'u')); });
    ExpectRefused(header, "id", [](v1::UploadHeader& it) { it.set_id("../a"); });
    ExpectRefused(header, "id", [](v1::UploadHeader& it) { it.set_id(std::string(64, 'a')); });
    ExpectRefused(header, "ttl", [](v1::UploadHeader& it) { it.mutable_ttl(); });
    ExpectRefused(header, "ttl", [](v1::UploadHeader& it) { it.mutable_ttl()->set_seconds(kMost); });
    v1::UploadHeader all = header;
    all.set_id("a");
    all.mutable_ttl()->set_seconds(60);
    const ObjectSpec spec = SpecOf(all);
    EXPECT_EQ(spec.id, "a");
    EXPECT_EQ(spec.upload_id, "upload");
    EXPECT_EQ(spec.ttl, std::chrono::seconds(60));
    EXPECT_EQ(spec.content_digest, all.sha256());
  }
}

TEST_F(UploadHeaderTest, AShapeThatIsNotAMatrixIsRefused) {
  const auto refused = [this](const std::string& field, int64_t rows, int64_t columns, int64_t entries) {
    ExpectRefused(Matrix(), "sparse_matrix.shape." + field, [&](v1::UploadHeader& header) {
      v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
      shape.set_rows(rows);
      shape.set_columns(columns);
      shape.set_entries(entries);
    });
  };
  constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();
  refused("rows", -1, 5, 4);
  refused("rows", kMaxSide + 1, 5, 4);
  refused("rows", kMost, kMost, kMost);
  refused("columns", 3, -1, 4);
  refused("columns", 3, kMaxSide + 1, 4);
  refused("entries", 3, 5, -1);
  refused("entries", 3, 5, 16);
  refused("entries", kMaxSide, kMaxSide, kMost);
  for (const int type : {0, 3, -1}) {
    ExpectRefused(Matrix(), "sparse_matrix.shape.value_type", [&](v1::UploadHeader& header) {
      header.mutable_sparse_matrix()->mutable_shape()->set_value_type(static_cast<v1::ValueType>(type));
    });
  }
}

// Its bytes are counted, not allocated.
TEST_F(UploadHeaderTest, WhatIsLargerThanTheLimitIsRefusedForItsSize) {
  ExpectRefused(Matrix(), "total_bytes", [](v1::UploadHeader& header) {
    v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
    shape.set_rows(std::numeric_limits<int32_t>::max());
    header.set_total_bytes((int64_t{1} << 31) * 8 + 32);
  });
  ExpectRefused(Volume(), "total_bytes", [](v1::UploadHeader& header) {
    header.mutable_volume()->mutable_geometry()->set_size(0, 16384);
    header.mutable_volume()->mutable_geometry()->set_size(1, 16);
    header.set_total_bytes(int64_t{16384} * 16 * 4 * 2);
  });
  limits_.max_matrix_bytes = 64;
  EXPECT_TRUE(Parse(Matrix()).ok()) << "just as much as is accepted";
  limits_.max_matrix_bytes = 63;
  ExpectRefused(Matrix(), "total_bytes", [](v1::UploadHeader&) {});
}

TEST_F(UploadHeaderTest, AGridThatIsNotAVolumeIsRefused) {
  ExpectRefused(Volume(), "volume.geometry.size",
                [](v1::UploadHeader& header) { header.mutable_volume()->mutable_geometry()->clear_size(); });
  for (const int64_t size : {int64_t{0}, int64_t{-6}, kMost}) {
    ExpectRefused(Volume(), "volume.geometry.size",
                  [&](v1::UploadHeader& header) { header.mutable_volume()->mutable_geometry()->set_size(1, size); });
  }
  for (const int type : {0, 1000, -1}) {
    ExpectRefused(Volume(), "volume.pixel_type", [&](v1::UploadHeader& header) {
      header.mutable_volume()->set_pixel_type(static_cast<v1::PixelType>(type));
    });
  }
  ExpectRefused(Volume(), "volume.rescale.slope",
                [](v1::UploadHeader& header) { header.mutable_volume()->mutable_rescale(); });
}

TEST_F(UploadHeaderTest, AProvenanceTellsOfNobody) {
  const auto refused = [this](const std::string& field, const std::function<void(v1::Provenance&)>& change) {
    ExpectRefused(Volume(), "volume.provenance." + field, [&](v1::UploadHeader& header) {
      v1::Provenance& provenance = *header.mutable_volume()->mutable_provenance();
      provenance.set_source(v1::PROVENANCE_SOURCE_DICOM);
      change(provenance);
    });
  };
  refused("source", [](v1::Provenance& it) { it.clear_source(); });
  refused("source", [](v1::Provenance& it) { it.set_source(static_cast<v1::ProvenanceSource>(1000)); });
  refused("modality", [](v1::Provenance& it) { it.set_modality("DOE^JANE"); });
  refused("series_hash", [](v1::Provenance& it) { it.set_series_hash("1.2.840.113619"); });
  refused("frame_of_reference_hash", [](v1::Provenance& it) { it.set_frame_of_reference_hash("x"); });
  refused("modality", [](v1::Provenance& it) {
    it.set_source(v1::PROVENANCE_SOURCE_FILE);
    it.set_modality("CT");
  });
}

TEST_F(UploadHeaderTest, AMapWithoutAnInverseIsRefused) {
  ExpectRefused(Affine(), "transform.affine.values",
                [](v1::UploadHeader& header) { header.mutable_transform()->mutable_affine()->set_values(0, 0); });
  ExpectRefused(Affine(), "transform.affine.values",
                [](v1::UploadHeader& header) { header.mutable_transform()->mutable_affine()->add_values(0); });
}

TEST_F(UploadHeaderTest, AFieldSaysItsBytesTwice) {
  ExpectRefused(Field(), "transform.field.total_bytes",
                [](v1::UploadHeader& header) { header.mutable_transform()->mutable_field()->set_total_bytes(1439); });
  for (const int encoding : {0, 1000, -1}) {
    ExpectRefused(Field(), "transform.field.encoding", [&](v1::UploadHeader& header) {
      header.mutable_transform()->mutable_field()->set_encoding(static_cast<v1::FieldEncoding>(encoding));
    });
  }
}

// Two uploads without an id are one object where their identities are the same.
TEST_F(UploadHeaderTest, WhateverMakesAnotherObjectMakesAnotherIdentity) {
  std::set<std::string> identities;
  const auto is_new = [&](v1::UploadHeader header, const std::function<void(v1::UploadHeader&)>& change) {
    change(header);
    return identities.insert(SpecOf(header).identity_digest).second;
  };
  const auto as_it_is = [](v1::UploadHeader&) {};
  const auto other_bytes = [](v1::UploadHeader& header) { header.set_sha256(std::string(32, 'e')); };
  for (const v1::UploadHeader& header : {Volume(), Matrix(), Affine(), Field()}) {
    EXPECT_TRUE(is_new(header, as_it_is));
    EXPECT_TRUE(is_new(header, other_bytes));
    EXPECT_FALSE(is_new(header, [](v1::UploadHeader& it) { it.set_upload_id("another"); }));
    EXPECT_FALSE(is_new(header, [](v1::UploadHeader& it) { it.mutable_ttl()->set_seconds(60); }));
  }
  EXPECT_TRUE(is_new(
      Matrix(), [](v1::UploadHeader& header) { header.mutable_sparse_matrix()->mutable_shape()->set_columns(6); }));
  EXPECT_TRUE(is_new(Volume(),
                     [](v1::UploadHeader& header) { header.mutable_volume()->set_pixel_type(v1::PIXEL_TYPE_UINT16); }));
  EXPECT_TRUE(is_new(
      Volume(), [](v1::UploadHeader& header) { header.mutable_volume()->mutable_geometry()->set_spacing(2, 1.5); }));
  EXPECT_TRUE(
      is_new(Volume(), [](v1::UploadHeader& header) { header.mutable_volume()->mutable_rescale()->set_slope(2); }));
  EXPECT_FALSE(is_new(Volume(), [](v1::UploadHeader& header) {
    header.mutable_volume()->mutable_rescale()->set_slope(1);
  })) << "as without a rescale";
  EXPECT_FALSE(is_new(Volume(), [](v1::UploadHeader& header) { header.mutable_volume()->set_pinned(true); }));
  EXPECT_TRUE(is_new(Affine(),
                     [](v1::UploadHeader& header) { header.mutable_transform()->mutable_affine()->set_values(3, 1); }));
}

TEST_F(UploadHeaderTest, AMatrixIsCheckedBeforeItIsMade) {
  const auto kind = Parse(Matrix());
  ASSERT_TRUE(kind.ok()) << kind.status();
  struct Csr {
    int64_t offsets[4] = {0, 2, 2, 4};
    int32_t columns[4] = {0, 4, 1, 2};
    float values[4] = {};
  };
  Csr csr;
  static_assert(sizeof(Csr) == 64);
  EXPECT_TRUE((*kind)->Validate(&csr).ok());
  csr.offsets[3] = 5;
  EXPECT_EQ(FieldOf((*kind)->Validate(&csr)), "row_offsets");
  csr = Csr();
  csr.columns[1] = 5;
  EXPECT_EQ(FieldOf((*kind)->Validate(&csr)), "column_indices");
  csr.columns[1] = 0;
  EXPECT_EQ(FieldOf((*kind)->Validate(&csr)), "column_indices") << "it is there twice";
}

TEST_F(UploadHeaderTest, AnObjectThatIsThereMakesTheUploadNeedless) {
  const auto kind = Parse(Matrix());
  ASSERT_TRUE(kind.ok()) << kind.status();
  const ServerContext context = parts_.Make();
  EXPECT_FALSE((*kind)->FindResident(context)->has_value());
  const auto stored = std::make_shared<StoredMatrix>();
  stored->id = "there";
  stored->id_was_chosen = true;
  stored->digest = (*kind)->spec().identity_digest;
  ASSERT_TRUE(matrices_.Insert(stored).ok());
  const absl::StatusOr<std::optional<v1::UploadResponse>> found = (*kind)->FindResident(context);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_TRUE((*found)->already_resident());
  EXPECT_EQ((*found)->sparse_matrix().name(), "sparseMatrices/there");
  (*kind)->set_owner("ann");
  EXPECT_FALSE((*kind)->FindResident(context)->has_value()) << "it is another's";
}

}  // namespace
}  // namespace intrawarp::server
