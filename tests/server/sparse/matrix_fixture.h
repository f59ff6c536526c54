// SPDX-License-Identifier: Apache-2.0
// A server and its sparse matrices; nothing is left after a test.
#ifndef INTRAWARP_TESTS_SERVER_SPARSE_MATRIX_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SPARSE_MATRIX_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/matrix_client.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {

class MatrixServiceTest : public ::testing::Test {
 protected:
  explicit MatrixServiceTest(const ServerOptions& options = TestServer::DefaultOptions())
      : test_(options), stub_(test_.Stub<v1::SparseMatrixService>()), bulk_(test_.Stub<v1::BulkService>()) {}
  // Whatever a test did, what it did not store is gone, at the latest when unfinished uploads have expired.
  ~MatrixServiceTest() override {
    for (const std::string& name : Names()) EXPECT_TRUE(Delete(name).ok());
    test_.ExpectNothingLeft();
  }

  DeviceContext& context() { return test_.server->context(); }

  std::vector<std::string> Names() {
    grpc::ClientContext call;
    v1::ListSparseMatricesRequest request;
    request.set_page_size(1000);
    v1::ListSparseMatricesResponse response;
    EXPECT_TRUE(stub_->ListSparseMatrices(&call, request, &response).ok());
    std::vector<std::string> names;
    for (const v1::SparseMatrix& matrix : response.sparse_matrices()) names.push_back(matrix.name());
    return names;
  }
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext call;
    v1::DeleteSparseMatrixRequest request;
    request.set_name(name);
    v1::DeleteSparseMatrixResponse response;
    return stub_->DeleteSparseMatrix(&call, request, &response);
  }
  grpc::Status Get(const std::string& name, v1::SparseMatrix* matrix) {
    grpc::ClientContext call;
    v1::GetSparseMatrixRequest request;
    request.set_name(name);
    v1::GetSparseMatrixResponse response;
    const grpc::Status status = stub_->GetSparseMatrix(&call, request, &response);
    *matrix = response.sparse_matrix();
    return status;
  }
  template <typename T>
  void Put(const std::string& id, const HostCsr<T>& csr) {
    const grpc::Status status = Upload(*bulk_, MakeMatrix(csr, "upload-" + id, id), nullptr, 1 << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  template <typename Request>
  void ExpectError(const Request& request, grpc::StatusCode code, const std::string& text, const std::string& field) {
    SCOPED_TRACE(request.ShortDebugString());
    const std::vector<std::string> before = Names();
    const Product product = Multiply(*stub_, request);
    EXPECT_STATUS(product.status, code, text);
    EXPECT_EQ(DetailsOf(product.status).field, field);
    EXPECT_FALSE(product.result.has_value());
    EXPECT_EQ(Names(), before);
  }

  TestServer test_;
  std::unique_ptr<v1::SparseMatrixService::Stub> stub_;
  std::unique_ptr<v1::BulkService::Stub> bulk_;
};

template <typename T>
using Entries = std::map<std::pair<int32_t, int32_t>, T>;

template <typename T>
Entries<double> EntriesOf(const HostCsr<T>& csr) {
  Entries<double> entries;
  for (int32_t r = 0; r < csr.rows; ++r) {
    for (int64_t i = csr.row_offsets[r]; i < csr.row_offsets[r + 1]; ++i) {
      entries[{r, csr.column_indices[i]}] = csr.values[i];
    }
  }
  return entries;
}

// The product by its definition, with its structural pattern.
template <typename T>
Entries<double> Reference(const HostCsr<T>& a, const HostCsr<T>& b) {
  Entries<double> c;
  for (const auto& [place, value] : EntriesOf(a)) {
    for (int64_t i = b.row_offsets[place.second]; i < b.row_offsets[place.second + 1]; ++i) {
      c[{place.first, b.column_indices[i]}] += value * b.values[i];
    }
  }
  return c;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SPARSE_MATRIX_FIXTURE_H_
