// SPDX-License-Identifier: Apache-2.0
// What tests do with sparse matrices over the wire.
#ifndef INTRAWARP_TESTS_SERVER_MATRIX_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_MATRIX_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/sparse/csr.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "tests/server/bulk_client.h"

namespace intrawarp::server {

// Whole numbers from -4 to 4, not 0, about `per_row` a row; some rows are empty.
template <typename T>
HostCsr<T> RandomCsr(int32_t rows, int32_t columns, int per_row, uint32_t seed) {
  std::mt19937 random(seed);
  HostCoo coo;
  coo.rows = rows;
  coo.columns = columns;
  for (int32_t r = 0; r < rows && columns > 0; ++r) {
    const int count = random() % 5 == 0 ? 0 : per_row;
    std::vector<int32_t> of_row;
    for (int i = 0; i < count; ++i) of_row.push_back(static_cast<int32_t>(random() % columns));
    std::sort(of_row.begin(), of_row.end());
    of_row.erase(std::unique(of_row.begin(), of_row.end()), of_row.end());
    for (int32_t column : of_row) {
      coo.row_indices.push_back(r);
      coo.column_indices.push_back(column);
      const int value = static_cast<int>(random() % 8) - 4;
      coo.values.push_back(value < 0 ? value : value + 1);
    }
  }
  return *CsrFromCoo<T>(coo);
}

// All places of it.
HostCsr<float> Full(int32_t rows, int32_t columns, float value);

template <typename T>
std::string CsrBytes(const HostCsr<T>& csr) {
  const auto bytes = [](const auto& v) {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(v[0]));
  };
  return bytes(csr.row_offsets) + bytes(csr.column_indices) + bytes(csr.values);
}

template <typename T>
UploadData MakeMatrix(const HostCsr<T>& csr, const std::string& upload_id, const std::string& id = "") {
  UploadData matrix;
  matrix.header.set_id(id);
  matrix.header.set_upload_id(upload_id);
  v1::SparseMatrixShape& shape = *matrix.header.mutable_sparse_matrix()->mutable_shape();
  shape.set_rows(csr.rows);
  shape.set_columns(csr.columns);
  shape.set_entries(csr.entries());
  shape.set_value_type(sizeof(T) == 4 ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  matrix.bytes = CsrBytes(csr);
  matrix.Seal();
  return matrix;
}

template <typename T>
HostCsr<T> CsrFromBytes(const v1::SparseMatrixShape& shape, const std::string& bytes) {
  HostCsr<T> csr;
  csr.rows = static_cast<int32_t>(shape.rows());
  csr.columns = static_cast<int32_t>(shape.columns());
  csr.row_offsets.resize(shape.rows() + 1);
  csr.column_indices.resize(shape.entries());
  csr.values.resize(shape.entries());
  EXPECT_EQ(shape.value_type(), sizeof(T) == 4 ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  const char* from = bytes.data();
  const auto take = [&](auto& v) {
    const size_t size = v.size() * sizeof(v[0]);
    if (static_cast<size_t>(bytes.data() + bytes.size() - from) < size) {
      ADD_FAILURE() << "too few bytes";
      return;
    }
    if (size > 0) std::memcpy(v.data(), from, size);
    from += size;
  };
  take(csr.row_offsets);
  take(csr.column_indices);
  take(csr.values);
  EXPECT_EQ(from, bytes.data() + bytes.size());
  EXPECT_TRUE(ValidateCsr(csr).ok()) << ValidateCsr(csr);
  return csr;
}

DownloadedBytes DownloadMatrix(v1::BulkService::Stub& stub, const std::string& name);

// New values for the pattern of a resident matrix ("sparseMatrices/ID").
template <typename T>
UploadData MakeValues(const std::string& pattern, const std::vector<T>& values, const std::string& upload_id,
                      const std::string& id = "") {
  UploadData upload;
  upload.header.set_id(id);
  upload.header.set_upload_id(upload_id);
  v1::SparseMatrixValuesUpload& content = *upload.header.mutable_sparse_matrix_values();
  content.set_pattern(pattern);
  content.set_value_type(sizeof(T) == 4 ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  upload.bytes = std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  upload.Seal();
  return upload;
}

// One Multiply call and everything that came back, in order.
struct Product {
  grpc::Status status;
  std::vector<v1::MultiplyProgress> progress;
  std::optional<v1::ProductHeader> header;
  std::string bytes;
  int chunks = 0;
  std::optional<v1::MultiplyResult> result;
};

Product Multiply(v1::SparseMatrixService::Stub& stub, const v1::MultiplyRequest& request);

v1::MultiplyRequest ProductOf(const std::string& a, const std::string& b);

Product Multiply(v1::SparseMatrixService::Stub& stub, const v1::MultiplyTripleRequest& request);

// Empty `r`: P transposed.
v1::MultiplyTripleRequest TripleOf(const std::string& r, const std::string& a, const std::string& p);

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_MATRIX_CLIENT_H_
