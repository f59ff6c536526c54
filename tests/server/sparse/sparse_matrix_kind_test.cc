// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/sparse_matrix_kind.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/sparse/matrix_messages.h"
#include "server/status/errors.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/engine/device_test.h"
#include "tests/server/partial_context.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;
using NewMatrix = absl::StatusOr<std::unique_ptr<NewObjectOf<StoredMatrix>>>;

constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();

// 3 x 5 with 5 entries: an empty row in the middle, and an odd number of columns before the values.
template <typename T>
HostCsr<T> Matrix() {
  HostCsr<T> matrix;
  matrix.rows = 3;
  matrix.columns = 5;
  matrix.row_offsets = {0, 3, 3, 5};
  matrix.column_indices = {0, 2, 4, 1, 3};
  matrix.values = {1.5, -2, 0, 1e-30f, 7};
  return matrix;
}

// The three arrays in the order of the wire.
template <typename T>
std::string BytesOf(const HostCsr<T>& matrix) {
  std::string bytes;
  const auto add = [&](const auto& array) {
    bytes.append(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(array[0]));
  };
  add(matrix.row_offsets);
  add(matrix.column_indices);
  add(matrix.values);
  return bytes;
}

template <typename T>
v1::UploadHeader HeaderOf(const HostCsr<T>& matrix) {
  v1::UploadHeader header;
  header.set_upload_id("an upload");
  header.set_sha256(std::string(32, 'd'));
  header.set_total_bytes(static_cast<int64_t>(BytesOf(matrix).size()));
  v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
  shape.set_rows(matrix.rows);
  shape.set_columns(matrix.columns);
  shape.set_entries(matrix.entries());
  shape.set_value_type(sizeof(T) == 4 ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  return header;
}

class MatrixUploadTest : public testing::Test {
 protected:
  NewMatrix Parse(const v1::UploadHeader& header) { return ParseSparseMatrixUpload(header, limits_); }
  void ExpectRefused(const std::string& field, const std::function<void(v1::SparseMatrixShape&)>& change) {
    v1::UploadHeader header = HeaderOf(Matrix<float>());
    change(*header.mutable_sparse_matrix()->mutable_shape());
    const absl::Status status = Parse(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(FieldOf(status), field) << status;
  }
  // What the object says of these bytes.
  template <typename T>
  absl::Status Validate(const HostCsr<T>& shape, const HostCsr<T>& content) {
    const NewMatrix object = Parse(HeaderOf(shape));
    EXPECT_TRUE(object.ok()) << object.status();
    return (*object)->Validate(BytesOf(content).data());
  }

  ServerLimits limits_;
};

TEST_F(MatrixUploadTest, ClaimsWhatItsShapeTakes) {
  const NewMatrix small = Parse(HeaderOf(Matrix<float>())), large = Parse(HeaderOf(Matrix<double>()));
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ((*small)->spec().total_bytes, 4 * 8 + 5 * 4 + 5 * 4);
  EXPECT_EQ((*large)->spec().total_bytes, 4 * 8 + 5 * 4 + 5 * 8);
  EXPECT_EQ((*small)->spec().resident_bytes, MatrixResidentBytes(3, 5, ValueType::kFloat32));
  EXPECT_EQ((*large)->spec().resident_bytes, MatrixResidentBytes(3, 5, ValueType::kFloat64));
  EXPECT_EQ((*small)->spec().workspace_bytes, 0);
  EXPECT_EQ((*small)->spec().transforms, 0);
  EXPECT_FALSE((*small)->JobWorkspaceBytes()) << "it is copied and no more";
}

TEST_F(MatrixUploadTest, AnErrorNamesTheFieldOfTheShape) {
  ExpectRefused("sparse_matrix.shape.rows", [](v1::SparseMatrixShape& shape) { shape.set_rows(-1); });
  ExpectRefused("sparse_matrix.shape.rows", [](v1::SparseMatrixShape& shape) { shape.set_rows(kMaxSide + 1); });
  ExpectRefused("sparse_matrix.shape.columns", [](v1::SparseMatrixShape& shape) { shape.set_columns(-1); });
  ExpectRefused("sparse_matrix.shape.columns", [](v1::SparseMatrixShape& shape) { shape.set_columns(kMaxSide + 1); });
  ExpectRefused("sparse_matrix.shape.entries", [](v1::SparseMatrixShape& shape) { shape.set_entries(-1); });
  ExpectRefused("sparse_matrix.shape.entries", [](v1::SparseMatrixShape& shape) { shape.set_entries(16); });
  ExpectRefused("sparse_matrix.shape.value_type", [](v1::SparseMatrixShape& shape) { shape.clear_value_type(); });
  ExpectRefused("sparse_matrix.shape.value_type",
                [](v1::SparseMatrixShape& shape) { shape.set_value_type(static_cast<v1::ValueType>(99)); });
  // Bytes of another shape.
  ExpectRefused("total_bytes", [](v1::SparseMatrixShape& shape) { shape.set_rows(4); });
  ExpectRefused("total_bytes", [](v1::SparseMatrixShape& shape) { shape.set_entries(4); });
  ExpectRefused("total_bytes", [](v1::SparseMatrixShape& shape) { shape.set_value_type(v1::VALUE_TYPE_FLOAT64); });
}

TEST_F(MatrixUploadTest, TheLargestShapesDoNotOverflow) {
  // As many entries as there are places.
  ExpectRefused("sparse_matrix.shape.entries", [](v1::SparseMatrixShape& shape) {
    shape.set_rows(kMaxSide);
    shape.set_columns(kMaxSide);
    shape.set_entries(kMaxSide * kMaxSide);
  });
  ExpectRefused("sparse_matrix.shape.entries", [](v1::SparseMatrixShape& shape) {
    shape.set_rows(kMaxSide);
    shape.set_columns(kMaxSide);
    shape.set_entries(kMaxSide * kMaxSide + 1);
  });
  ExpectRefused("total_bytes", [](v1::SparseMatrixShape& shape) {
    shape.set_rows(kMaxSide);
    shape.set_columns(kMaxSide);
  });
}

TEST_F(MatrixUploadTest, IsNoLargerThanTheLimit) {
  const v1::UploadHeader header = HeaderOf(Matrix<float>());
  limits_.max_matrix_bytes = header.total_bytes();
  EXPECT_TRUE(Parse(header).ok()) << Parse(header).status();
  limits_.max_matrix_bytes -= 1;
  EXPECT_EQ(FieldOf(Parse(header).status()), "total_bytes");
}

TEST_F(MatrixUploadTest, EmptyMatricesAreNormal) {
  for (const auto& [rows, columns] : {std::pair{0, 0}, std::pair{0, 5}, std::pair{3, 0}, std::pair{3, 5}}) {
    HostCsr<double> matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.row_offsets.assign(rows + size_t{1}, 0);
    EXPECT_TRUE(Validate(matrix, matrix).ok()) << rows << " x " << columns;
    v1::UploadHeader header = HeaderOf(matrix);
    header.mutable_sparse_matrix()->mutable_shape()->set_entries(1);
    if (rows * columns == 0) {
      EXPECT_EQ(FieldOf(Parse(header).status()), "sparse_matrix.shape.entries") << rows << " x " << columns;
    }
  }
}

TEST_F(MatrixUploadTest, EveryOffsetAndColumnIsChecked) {
  const HostCsr<float> good = Matrix<float>();
  EXPECT_TRUE(Validate(good, good).ok());
  const auto refused = [&](const std::function<void(HostCsr<float>&)>& change) {
    HostCsr<float> bad = good;
    change(bad);
    const absl::Status status = Validate(good, bad);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return FieldOf(status);
  };
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.row_offsets = {1, 3, 3, 5}; }), "row_offsets");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.row_offsets = {0, 3, 2, 5}; }), "row_offsets");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.row_offsets = {0, 3, 3, 4}; }), "row_offsets");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.row_offsets = {0, 3, 3, 6}; }), "row_offsets");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.column_indices[1] = 0; }), "column_indices");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.column_indices[3] = -1; }), "column_indices");
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.column_indices[4] = 5; }), "column_indices");
  // Values are whatever a client computes with.
  EXPECT_EQ(refused([](HostCsr<float>& matrix) { matrix.values[0] = std::numeric_limits<float>::quiet_NaN(); }), "");
}

TEST_F(MatrixUploadTest, ContentShapeAndTypeAreItsIdentity) {
  // Shapes of the same number of bytes: an offset is as long as two columns or values of float32.
  HostCsr<float> wider = Matrix<float>(), flat;
  wider.columns = 6;
  flat.rows = 2;
  flat.columns = 8;
  flat.row_offsets = {0, 3, 6};
  flat.column_indices = {0, 1, 2, 3, 4, 5};
  flat.values.assign(6, 1);
  ASSERT_EQ(BytesOf(flat).size(), BytesOf(Matrix<float>()).size());
  std::vector<v1::UploadHeader> all = {HeaderOf(Matrix<float>()), HeaderOf(Matrix<double>()), HeaderOf(wider),
                                       HeaderOf(flat), HeaderOf(Matrix<float>())};
  all.back().set_sha256(std::string(32, 'e'));
  std::set<std::string> identities;
  for (const v1::UploadHeader& header : all) identities.insert((*Parse(header))->spec().identity_digest);
  EXPECT_EQ(identities.size(), all.size());
  EXPECT_EQ(identities.count(""), 0);
  v1::UploadHeader named = all.front();
  named.set_id("mine");
  named.set_upload_id("another upload");
  EXPECT_EQ((*Parse(named))->spec().identity_digest, (*Parse(all.front()))->spec().identity_digest);
}

class SparseMatrixKindTest : public DeviceTest {
 protected:
  template <typename T>
  std::shared_ptr<StoredMatrix> Made(const HostCsr<T>& matrix, const std::string& description = "") {
    NewMatrix object = ParseSparseMatrixUpload(HeaderOf(matrix), ServerLimits());
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return nullptr;
    const std::string bytes = BytesOf(matrix);
    EXPECT_OK((*object)->Validate(bytes.data()));
    StagedUpload upload(bytes.data(), nullptr);
    EXPECT_OK((*object)->Make(ctx(), upload));
    auto stored = (*object)->Take(Grant(), description);
    EXPECT_TRUE(stored.ok()) << stored.status();
    if (!stored.ok()) return nullptr;
    EXPECT_LE((*stored)->matrix.bytes(), (*object)->spec().resident_bytes) << "what was claimed";
    return *stored;
  }
  template <typename T>
  void ExpectComesBack(const HostCsr<T>& matrix) {
    const std::shared_ptr<StoredMatrix> stored = Made(matrix);
    ASSERT_NE(stored, nullptr);
    const auto back = stored->matrix.Download<T>(device(), ctx().stream());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, matrix);
    EXPECT_EQ(stored->content_digest, std::string(32, 'd'));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SparseMatrixKindTest);

TEST_P(SparseMatrixKindTest, IsMadeOfItsThreeArrays) {
  ExpectComesBack(Matrix<float>());
  ExpectComesBack(Matrix<double>());
  HostCsr<float> empty;
  ExpectComesBack(empty);
  empty.rows = 4;
  empty.columns = 9;
  empty.row_offsets.assign(5, 0);
  ExpectComesBack(empty);
}

TEST_P(SparseMatrixKindTest, ADescriptionBringsTheReportOfAProduct) {
  v1::MultiplyResult result;
  result.mutable_report()->set_device("cuda:1");
  const auto stored = Made(Matrix<float>(), result.SerializeAsString());
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->report.device(), "cuda:1");
  NewMatrix object = ParseSparseMatrixUpload(HeaderOf(Matrix<float>()), ServerLimits());
  ASSERT_TRUE(object.ok());
  EXPECT_TRUE(absl::IsDataLoss((*object)->Take(Grant(), "\xff damaged").status()));
}

TEST_P(SparseMatrixKindTest, ADownloadSendsWhatAnUploadBrought) {
  MatrixStore matrices;
  const HostCsr<double> matrix = Matrix<double>();
  const std::shared_ptr<StoredMatrix> stored = Made(matrix);
  ASSERT_NE(stored, nullptr);
  stored->id = "a";
  stored->owner = "ann";
  stored->digest = "identity";
  stored->create_time = std::chrono::system_clock::time_point(std::chrono::seconds(100));
  ASSERT_OK(matrices.Insert(stored));
  PartialContext parts;
  parts.matrices = &matrices;
  const ServerContext context = parts.Make();
  const auto download = FindSparseMatrixDownload(context, "sparseMatrices/a", Identity{"ann", Role::kStage});
  ASSERT_TRUE(download.ok()) << download.status();
  const std::string wanted = BytesOf(matrix);
  EXPECT_EQ(download->header.total_bytes(), static_cast<int64_t>(wanted.size()));
  EXPECT_EQ(download->header.sparse_matrix().name(), "sparseMatrices/a");
  EXPECT_EQ(download->header.sparse_matrix().shape().entries(), 5);
  EXPECT_EQ(download->digest, "identity");
  EXPECT_EQ(download->create_time, stored->create_time);
  EXPECT_EQ(download->device, 0);
  std::string got(wanted.size(), '?');
  ASSERT_OK(CopyRange(ctx(), download->bytes.bytes, 0, static_cast<int64_t>(got.size()), got.data()));
  ASSERT_OK(device().Synchronize(ctx().stream()));
  EXPECT_EQ(got, wanted);
  // A delete does not take it from under the download.
  EXPECT_EQ(download->bytes.owner, stored);
}

TEST(FindSparseMatrixDownload, IsOfMatricesThatTheCallerMaySee) {
  MatrixStore matrices;
  auto stored = std::make_shared<StoredMatrix>();
  stored->id = "a";
  stored->owner = "ann";
  ASSERT_TRUE(matrices.Insert(stored).ok());
  PartialContext parts;
  parts.matrices = &matrices;
  const ServerContext context = parts.Make();
  const auto find = [&](const std::string& name, const Identity& caller) {
    return FindSparseMatrixDownload(context, name, caller).status();
  };
  EXPECT_TRUE(find("sparseMatrices/a", Identity{"ann", Role::kFrame}).ok());
  EXPECT_TRUE(find("sparseMatrices/a", Identity{"eve", Role::kAdmin}).ok());
  EXPECT_TRUE(absl::IsNotFound(find("sparseMatrices/a", Identity{"bob", Role::kStage})));
  EXPECT_TRUE(absl::IsNotFound(find("sparseMatrices/b", Identity{"ann", Role::kStage})));
  EXPECT_EQ(FieldOf(find("volumes/a", Identity{"ann", Role::kStage})), "name");
}

// After every failure of the device nothing refers to the upload's memory any more, and nothing is held.
TEST(SparseMatrixKindFaults, AnErrorOfTheDeviceIsTheMakers) {
  FaultyDevice device(*OpenDevice("cpu"));
  const std::string bytes = BytesOf(Matrix<float>());
  for (const DeviceCall call : {DeviceCall::kAllocate, DeviceCall::kCopy, DeviceCall::kSynchronize}) {
    for (const int64_t nth : {1, 2, 3}) {
      if (call == DeviceCall::kSynchronize && nth > 1) continue;
      OwnedContext owned = *OwnedContext::Create(device, size_t{1} << 16);
      const LiveObjects before = device.live();
      const int64_t waits = device.calls(DeviceCall::kSynchronize);
      NewMatrix object = ParseSparseMatrixUpload(HeaderOf(Matrix<float>()), ServerLimits());
      ASSERT_TRUE(object.ok());
      device.FailAt(nth, absl::ResourceExhaustedError("full"), call);
      StagedUpload upload(bytes.data(), nullptr);
      EXPECT_TRUE(absl::IsResourceExhausted((*object)->Make(owned.context(), upload)));
      EXPECT_EQ(device.calls(DeviceCall::kSynchronize) - waits, call == DeviceCall::kAllocate ? 0 : 1);
      device.Disarm();
      *object = nullptr;
      EXPECT_EQ(device.live(), before);
    }
  }
}

}  // namespace
}  // namespace intrawarp::server
