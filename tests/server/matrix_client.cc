// SPDX-License-Identifier: Apache-2.0
#include "tests/server/matrix_client.h"

#include <chrono>

namespace intrawarp::server {

HostCsr<float> Full(int32_t rows, int32_t columns, float value) {
  HostCsr<float> csr;
  csr.rows = rows;
  csr.columns = columns;
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t c = 0; c < columns; ++c) csr.column_indices.push_back(c);
    csr.row_offsets.push_back(csr.entries());
  }
  csr.values.assign(csr.column_indices.size(), value);
  return csr;
}

DownloadedBytes DownloadMatrix(v1::BulkService::Stub& stub, const std::string& name) {
  v1::DownloadRequest request;
  request.set_name(name);
  return DownloadBytes(stub, request);
}

namespace {

// `start` begins the call with its context.
template <typename Start>
Product Collect(const Start& start) {
  Product product;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  const std::unique_ptr<grpc::ClientReader<v1::MultiplyResponse>> reader = start(&context);
  v1::MultiplyResponse response;
  while (reader->Read(&response)) {
    EXPECT_FALSE(product.result.has_value()) << "the result is the last message";
    if (response.has_progress()) {
      EXPECT_FALSE(product.header.has_value()) << "progress comes before the product";
      product.progress.push_back(response.progress());
    } else if (response.has_header()) {
      EXPECT_FALSE(product.header.has_value());
      product.header = response.header();
    } else if (response.has_chunk()) {
      EXPECT_TRUE(product.header.has_value());
      EXPECT_EQ(response.chunk().offset(), static_cast<int64_t>(product.bytes.size()));
      product.bytes += response.chunk().data();
      ++product.chunks;
    } else {
      product.result = response.result();
    }
  }
  product.status = reader->Finish();
  return product;
}

}  // namespace

Product Multiply(v1::SparseMatrixService::Stub& stub, const v1::MultiplyRequest& request) {
  return Collect([&](grpc::ClientContext* context) { return stub.Multiply(context, request); });
}

Product Multiply(v1::SparseMatrixService::Stub& stub, const v1::MultiplyTripleRequest& request) {
  return Collect([&](grpc::ClientContext* context) { return stub.MultiplyTriple(context, request); });
}

v1::MultiplyTripleRequest TripleOf(const std::string& r, const std::string& a, const std::string& p) {
  v1::MultiplyTripleRequest request;
  if (!r.empty()) request.set_r("sparseMatrices/" + r);
  request.set_a("sparseMatrices/" + a);
  request.set_p("sparseMatrices/" + p);
  return request;
}

v1::MultiplyRequest ProductOf(const std::string& a, const std::string& b) {
  v1::MultiplyRequest request;
  request.set_a("sparseMatrices/" + a);
  request.set_b("sparseMatrices/" + b);
  return request;
}

}  // namespace intrawarp::server
