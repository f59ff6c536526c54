// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/matrix_messages.h"

#include <gtest/gtest.h>

#include <chrono>

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

StoredMatrix MakeMatrix(ValueType type) {
  StoredMatrix matrix;
  matrix.id = "a";
  matrix.owner = "ann";
  matrix.digest = "shape and bytes";
  matrix.content_digest = "bytes";
  matrix.create_time = system_clock::time_point(seconds(100));
  matrix.matrix = CsrMatrix({.rows = 3, .columns = 5, .entries = 7}, type, Buffer(), Buffer(), Buffer());
  return matrix;
}

TEST(SparseMatrixToProto, EachFieldGoesWhereItBelongs) {
  const v1::SparseMatrix to = SparseMatrixToProto(MakeMatrix(ValueType::kFloat64));
  EXPECT_EQ(to.name(), "sparseMatrices/a");
  EXPECT_EQ(to.owner(), "ann");
  EXPECT_EQ(to.digest(), "bytes") << "clients compare it with what they sent";
  EXPECT_EQ(to.create_time().seconds(), 100);
  EXPECT_FALSE(to.has_expire_time());
  EXPECT_EQ(to.shape().rows(), 3);
  EXPECT_EQ(to.shape().columns(), 5);
  EXPECT_EQ(to.shape().entries(), 7);
  EXPECT_EQ(to.shape().value_type(), v1::VALUE_TYPE_FLOAT64);
}

TEST(SparseMatrixToProto, TheExpiryIsByTheClockOfClients) {
  StoredMatrix matrix = MakeMatrix(ValueType::kFloat32);
  matrix.expiry = Expiry{system_clock::time_point(seconds(160)), {}};
  const v1::SparseMatrix to = SparseMatrixToProto(matrix);
  EXPECT_EQ(to.expire_time().seconds(), 160);
  EXPECT_EQ(to.shape().value_type(), v1::VALUE_TYPE_FLOAT32);
}

TEST(WireBytes, AreTheThreeArraysInTheirOrder) {
  const int64_t offsets[4] = {};
  const int32_t columns[7] = {};
  const double values[7] = {};
  ConstCsrView view;
  view.rows = 3;
  view.columns = 5;
  view.entries = 7;
  view.row_offsets = offsets;
  view.column_indices = columns;
  view.values = values;
  view.type = ValueType::kFloat64;
  DeviceBytes bytes = WireBytes(view);
  ASSERT_EQ(bytes.size(), 3);
  EXPECT_EQ(bytes[0].data, offsets);
  EXPECT_EQ(bytes[0].bytes, sizeof(offsets));
  EXPECT_EQ(bytes[1].data, columns);
  EXPECT_EQ(bytes[1].bytes, sizeof(columns));
  EXPECT_EQ(bytes[2].data, values);
  EXPECT_EQ(bytes[2].bytes, sizeof(values));
  view.type = ValueType::kFloat32;
  EXPECT_EQ(WireBytes(view)[2].bytes, 7 * 4);
}

TEST(MatrixResidentBytes, NoMatrixIsFreeAndEachArrayIsAsTheDeviceGivesIt) {
  EXPECT_EQ(MatrixResidentBytes(0, 0, ValueType::kFloat32), kLeastObjectBytes);
  const auto rounded = [](size_t bytes) { return static_cast<int64_t>(Arena::Rounded(bytes)); };
  EXPECT_EQ(MatrixResidentBytes(1000, 5000, ValueType::kFloat32), rounded(8 * 1001) + 2 * rounded(4 * 5001));
  EXPECT_EQ(MatrixResidentBytes(1000, 5000, ValueType::kFloat64),
            rounded(8 * 1001) + rounded(4 * 5001) + rounded(8 * 5001));
  // The largest shape does not overflow.
  EXPECT_GT(MatrixResidentBytes(int64_t{1} << 31, int64_t{1} << 55, ValueType::kFloat64), int64_t{12} << 55);
}

}  // namespace
}  // namespace intrawarp::server
