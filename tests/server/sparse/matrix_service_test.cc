// SPDX-License-Identifier: Apache-2.0
// Sparse matrices and their products over the wire: what works, what is refused and how, and that nothing is left
// behind.
#include "server/service/matrix_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status_macros.h"
#include "tests/server/gated_device.h"
#include "tests/server/http_client.h"
#include "tests/server/matrix_client.h"
#include "tests/server/service_fixture.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool Nothing(const v1::Usage& usage) { return usage.ByteSizeLong() == 0; }

class MatrixServiceTest : public ::testing::Test {
 protected:
  explicit MatrixServiceTest(const ServerOptions& options = TestServer::DefaultOptions())
      : test_(options), stub_(test_.Stub<v1::SparseMatrixService>()), bulk_(test_.Stub<v1::BulkService>()) {}
  // Whatever a test did, what it did not store is gone, at the latest when unfinished uploads have expired.
  ~MatrixServiceTest() override {
    for (const std::string& name : Names()) EXPECT_TRUE(Delete(name).ok());
    test_.WaitForUsage([](const v1::Usage& usage) { return usage.streams() == 0 && usage.jobs() == 0; });
    const v1::Usage usage = test_.WaitForExpiredUsage(Nothing);
    EXPECT_TRUE(Nothing(usage)) << usage.ShortDebugString();
    for (int i = 0; i < 500 && context().pinned.leased_bytes() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(context().pinned.leased_bytes(), 0u);
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
  void ExpectError(const v1::MultiplyRequest& request, grpc::StatusCode code, const std::string& text,
                   const std::string& field) {
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

TEST_F(MatrixServiceTest, ComesBackAsItWas) {
  const HostCsr<float> csr = RandomCsr<float>(61, 43, 5, 1);
  const UploadData data = MakeMatrix(csr, "u", "stiffness");
  v1::UploadResponse response;
  const grpc::Status status = Upload(*bulk_, data, &response, /*chunk=*/37);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(response.already_resident());
  const v1::SparseMatrix& matrix = response.sparse_matrix();
  EXPECT_EQ(matrix.name(), "sparseMatrices/stiffness");
  EXPECT_EQ(matrix.shape().SerializeAsString(), data.header.sparse_matrix().shape().SerializeAsString());
  EXPECT_EQ(matrix.digest(), data.header.sha256());
  EXPECT_GE(matrix.resident_bytes(), static_cast<int64_t>(data.bytes.size()));
  EXPECT_GT(matrix.create_time().seconds(), 0);
  v1::SparseMatrix got;
  ASSERT_TRUE(Get("sparseMatrices/stiffness", &got).ok());
  EXPECT_EQ(got.SerializeAsString(), matrix.SerializeAsString());

  const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/stiffness");
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  EXPECT_EQ(back.header.sparse_matrix().SerializeAsString(), matrix.SerializeAsString());
  EXPECT_EQ(back.header.total_bytes(), static_cast<int64_t>(data.bytes.size()));
  EXPECT_TRUE(back.bytes == data.bytes);

  const v1::Usage usage = test_.Info().usage();
  EXPECT_EQ(usage.sparse_matrices(), 1);
  EXPECT_EQ(usage.uploads(), 0);
  EXPECT_EQ(usage.resident_bytes(), matrix.resident_bytes());
}

TEST_F(MatrixServiceTest, EmptyOnesAndOnesOfManySlabs) {
  // No rows, no columns, no entries; float64; more than two slabs of a download, no multiple of a chunk.
  const HostCsr<double> large = RandomCsr<double>(70001, 5000, 30, 2);
  ASSERT_GT(CsrBytes(large).size(), size_t{17} << 20);
  const UploadData datas[] = {
      MakeMatrix(HostCsr<float>(), "0", "none"), MakeMatrix(RandomCsr<float>(0, 7, 3, 1), "1", "norows"),
      MakeMatrix(RandomCsr<double>(7, 0, 3, 1), "2", "nocolumns"),
      MakeMatrix(RandomCsr<float>(300, 1, 0, 1), "3", "noentries"), MakeMatrix(large, "4", "large")};
  for (const UploadData& data : datas) {
    SCOPED_TRACE(data.header.id());
    const grpc::Status status = Upload(*bulk_, data, nullptr, 1 << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/" + data.header.id());
    ASSERT_TRUE(back.status.ok()) << back.status.error_message();
    EXPECT_TRUE(back.bytes == data.bytes);
  }
}

TEST_F(MatrixServiceTest, EachWrongHeaderNamesItsField) {
  using Header = v1::UploadHeader;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const struct {
    const char* field;
    std::function<void(Header&)> spoil;
  } cases[] = {
      {"header.id", [](Header& h) { h.set_id("../x"); }},
      {"header.upload_id", [](Header& h) { h.set_upload_id(""); }},
      {"header.sparse_matrix.shape.rows", [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_rows(-1); }},
      {"header.sparse_matrix.shape.rows",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_rows(int64_t{1} << 31); }},
      {"header.sparse_matrix.shape.columns",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_columns(-1); }},
      {"header.sparse_matrix.shape.columns",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_columns(kMost); }},
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(-1); }},
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(kMost); }},
      // One more than there are places.
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(9 * 8 + 1); }},
      // Places enough, but bytes that overflow.
      {"header.sparse_matrix.shape.entries",
       [](Header& h) {
         h.mutable_sparse_matrix()->mutable_shape()->set_rows((int64_t{1} << 31) - 1);
         h.mutable_sparse_matrix()->mutable_shape()->set_columns((int64_t{1} << 31) - 1);
         h.mutable_sparse_matrix()->mutable_shape()->set_entries(int64_t{1} << 61);
       }},
      {"header.sparse_matrix.shape.value_type",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->clear_value_type(); }},
      {"header.sparse_matrix.shape.value_type",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_value_type(v1::ValueType(9)); }},
      {"header.total_bytes", [](Header& h) { h.set_total_bytes(h.total_bytes() - 1); }},
      {"header.total_bytes", [](Header& h) { h.set_total_bytes(-1); }},
      {"header.total_bytes",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_value_type(v1::VALUE_TYPE_FLOAT64); }},
      {"header.sha256", [](Header& h) { h.mutable_sha256()->pop_back(); }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.field);
    UploadData data = MakeMatrix(RandomCsr<float>(9, 8, 3, 1), "u");
    c.spoil(data.header);
    const grpc::Status status = Upload(*bulk_, data);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, c.field) << status.error_message();
    EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
  }
}

TEST_F(MatrixServiceTest, EachBrokenCsrNamesItsArrayAndIsDropped) {
  const auto change = [](auto member, size_t at, int64_t value) {
    return [=](HostCsr<float>& m) {
      auto& array = m.*member;
      array[at] = static_cast<typename std::decay_t<decltype(array)>::value_type>(value);
    };
  };
  constexpr auto kOffsets = &HostCsr<float>::row_offsets;
  constexpr auto kColumns = &HostCsr<float>::column_indices;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const struct {
    const char* field;
    std::function<void(HostCsr<float>&)> spoil;
  } cases[] = {
      {"row_offsets", change(kOffsets, 0, 1)},
      {"row_offsets", change(kOffsets, 1, 3)},
      {"row_offsets", change(kOffsets, 1, -1)},
      {"row_offsets", change(kOffsets, 1, kMost)},
      {"row_offsets", change(kOffsets, 3, 4)},
      {"row_offsets", change(kOffsets, 3, 6)},
      {"column_indices", change(kColumns, 0, -1)},
      {"column_indices", change(kColumns, 4, 4)},
      {"column_indices", change(kColumns, 1, 0)},
      {"column_indices", change(kColumns, 0, 3)},
      {"column_indices", change(kColumns, 4, std::numeric_limits<int32_t>::max())},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    HostCsr<float> csr;  // 0 2 | - | 0 1 3
    csr.rows = 3;
    csr.columns = 4;
    csr.row_offsets = {0, 2, 2, 5};
    csr.column_indices = {0, 2, 0, 1, 3};
    csr.values = {1, 2, 3, 4, 5};
    ASSERT_TRUE(ValidateCsr(csr).ok());
    cases[i].spoil(csr);
    const grpc::Status status = Upload(*bulk_, MakeMatrix(csr, "u"));
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, cases[i].field) << status.error_message();
    EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
  }
}

TEST_F(MatrixServiceTest, BrokenUploadsResumeAndWrongDigestsDrop) {
  UploadData data = MakeMatrix(RandomCsr<float>(200, 100, 7, 4), "u", "m");
  grpc::Status status = Upload(*bulk_, data, nullptr, 500, 0, 1500);
  EXPECT_EQ(DetailsOf(status).reason, "UPLOAD_INCOMPLETE");
  // The upload is free to be resumed when its stream is gone.
  test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; });
  v1::GetUploadStatusRequest request;
  request.set_upload_id("u");
  v1::GetUploadStatusResponse progress;
  {
    grpc::ClientContext call;
    ASSERT_TRUE(bulk_->GetUploadStatus(&call, request, &progress).ok());
  }
  EXPECT_EQ(progress.committed_bytes(), 1500);
  EXPECT_EQ(progress.total_bytes(), static_cast<int64_t>(data.bytes.size()));
  // An upload of a volume is another one, and does not touch this one before it is dropped for its header.
  status = Upload(*bulk_, data, nullptr, 500, 1500);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/m").bytes == data.bytes);
  {
    grpc::ClientContext call;
    EXPECT_EQ(bulk_->GetUploadStatus(&call, request, &progress).error_code(), grpc::NOT_FOUND);
  }
  UploadData wrong = MakeMatrix(RandomCsr<float>(20, 10, 3, 5), "w", "w");
  wrong.bytes.back() = static_cast<char>(wrong.bytes.back() ^ 1);
  status = Upload(*bulk_, wrong);
  EXPECT_EQ(status.error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(DetailsOf(status).reason, "DIGEST_MISMATCH");
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 0; }).uploads(), 0);
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/m"));
}

TEST_F(MatrixServiceTest, AnUploadIdOfAVolumeIsNotOneOfAMatrix) {
  const Geometry grid = BoxGeometry(4, 4, 4);
  UploadCall unfinished(*bulk_);
  unfinished.SendHeader(MakeVolume(grid, RandomVoxels<float>(grid, 1), "u").header);
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 1; }).uploads(), 1);
  const UploadData data = MakeMatrix(RandomCsr<float>(9, 8, 3, 1), "u");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, data)).reason, "INVALID_FIELD");
  EXPECT_EQ(DetailsOf(unfinished.Await()).reason, "UPLOAD_TAKEN_OVER");
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 0; }).uploads(), 0);
}

TEST_F(MatrixServiceTest, UploadIsIdempotentAndIdsAreTakenOnce) {
  const HostCsr<float> csr = RandomCsr<float>(30, 20, 4, 6);
  v1::UploadResponse first, second;
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "1"), &first).ok());
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "2"), &second).ok());
  EXPECT_FALSE(first.already_resident());
  EXPECT_TRUE(second.already_resident());
  EXPECT_EQ(first.sparse_matrix().name(), second.sparse_matrix().name());
  // The same bytes in another shape are another matrix.
  HostCsr<float> wider = csr;
  wider.columns += 1;
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(wider, "3"), &second).ok());
  EXPECT_FALSE(second.already_resident());
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "4", "mine"), &second).ok());
  EXPECT_FALSE(second.already_resident());
  const grpc::Status taken = Upload(*bulk_, MakeMatrix(wider, "5", "mine"));
  EXPECT_EQ(taken.error_code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(DetailsOf(taken).resource, "sparseMatrices/mine");
  EXPECT_EQ(Names().size(), 3u);
}

TEST_F(MatrixServiceTest, ListsInPagesAndKnowsNoOthers) {
  for (const char* id : {"b", "d", "a", "c", "e"}) Put(id, RandomCsr<float>(4, 4, 2, id[0]));
  std::vector<std::string> names;
  v1::ListSparseMatricesRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    grpc::ClientContext call;
    v1::ListSparseMatricesResponse response;
    ASSERT_TRUE(stub_->ListSparseMatrices(&call, request, &response).ok());
    for (const auto& matrix : response.sparse_matrices()) names.push_back(matrix.name());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(names, ElementsAre("sparseMatrices/a", "sparseMatrices/b", "sparseMatrices/c", "sparseMatrices/d",
                                 "sparseMatrices/e"));
  v1::SparseMatrix matrix;
  EXPECT_EQ(DetailsOf(Get("sparseMatrices/none", &matrix)).resource, "sparseMatrices/none");
  EXPECT_EQ(DetailsOf(Get("volumes/a", &matrix)).field, "name");
  EXPECT_EQ(Delete("sparseMatrices/none").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(DownloadMatrix(*bulk_, "sparseMatrices/none").status.error_code(), grpc::NOT_FOUND);
}

TEST_F(MatrixServiceTest, MultipliesRectanglesInChunks) {
  const HostCsr<float> a = RandomCsr<float>(2003, 501, 9, 7), b = RandomCsr<float>(501, 1777, 60, 8);
  Put("a", a);
  Put("b", b);
  const Product product = Multiply(*stub_, ProductOf("a", "b"));
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  ASSERT_TRUE(product.header && product.result);
  EXPECT_EQ(product.header->total_bytes(), static_cast<int64_t>(product.bytes.size()));
  EXPECT_GT(product.chunks, 1);
  const HostCsr<float> c = CsrFromBytes<float>(product.header->shape(), product.bytes);
  EXPECT_EQ(c.rows, 2003);
  EXPECT_EQ(c.columns, 1777);
  EXPECT_TRUE(EntriesOf(c) == Reference(a, b));  // whole numbers: exact

  int64_t products = 0;
  for (int32_t k : a.column_indices) products += b.row_offsets[k + 1] - b.row_offsets[k];
  const v1::MultiplyReport& report = product.result->report();
  EXPECT_EQ(report.device(), context().device.name());
  EXPECT_EQ(report.options().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(report.options().semiring(), v1::SEMIRING_PLUS_TIMES);
  EXPECT_EQ(report.shape().SerializeAsString(), product.header->shape().SerializeAsString());
  EXPECT_EQ(report.estimate().multiplications(), products);
  EXPECT_GE(report.estimate().max_entries(), c.entries());
  EXPECT_GE(report.estimate().result_bytes(), static_cast<int64_t>(product.bytes.size()));
  const v1::LatencyBreakdown& ms = report.latency();
  EXPECT_GT(ms.prepare_ms(), 0);
  EXPECT_GT(ms.optimise_ms(), 0);
  EXPECT_GT(ms.download_ms(), 0);
  EXPECT_GE(ms.total_ms(), ms.admit_ms() + ms.queue_ms() + ms.prepare_ms() + ms.optimise_ms());
  ASSERT_EQ(product.progress.size(), 3u);
  EXPECT_EQ(product.progress[0].step(), v1::MultiplyProgress::STEP_ESTIMATED);
  EXPECT_EQ(product.progress[0].estimate().multiplications(), products);
  EXPECT_EQ(product.progress[0].entries(), 0);
  EXPECT_EQ(product.progress[1].step(), v1::MultiplyProgress::STEP_PLANNED);
  EXPECT_EQ(product.progress[1].entries(), c.entries());
  EXPECT_EQ(product.progress[2].step(), v1::MultiplyProgress::STEP_MULTIPLIED);
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a", "sparseMatrices/b"));
}

TEST_F(MatrixServiceTest, MultipliesInDoubleAndEmptyMatrices) {
  const HostCsr<double> a = RandomCsr<double>(40, 30, 5, 9);
  Put("a", a);
  Put("b", RandomCsr<double>(30, 20, 5, 10));
  Put("empty", RandomCsr<double>(30, 0, 5, 10));
  v1::MultiplyRequest request = ProductOf("a", "b");
  request.mutable_options()->set_precision(v1::PRECISION_FP64);
  const Product product = Multiply(*stub_, request);
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<double>(product.header->shape(), product.bytes)) ==
              Reference(a, RandomCsr<double>(30, 20, 5, 10)));
  request.set_b("sparseMatrices/empty");
  const Product none = Multiply(*stub_, request);
  ASSERT_TRUE(none.status.ok()) << none.status.error_message();
  const HostCsr<double> c = CsrFromBytes<double>(none.header->shape(), none.bytes);
  EXPECT_EQ(c.rows, 40);
  EXPECT_EQ(c.columns, 0);
  EXPECT_EQ(c.entries(), 0);
}

TEST_F(MatrixServiceTest, AKeptProductIsAMatrixLikeOthers) {
  const HostCsr<float> a = RandomCsr<float>(50, 50, 4, 11);
  Put("a", a);
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_keep()->set_id("square");
  const Product kept = Multiply(*stub_, request);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  EXPECT_FALSE(kept.header.has_value());
  EXPECT_EQ(kept.chunks, 0);
  const v1::SparseMatrix& matrix = kept.result->sparse_matrix();
  EXPECT_EQ(matrix.name(), "sparseMatrices/square");
  EXPECT_EQ(matrix.digest(), "");
  v1::SparseMatrix got;
  ASSERT_TRUE(Get("sparseMatrices/square", &got).ok());
  EXPECT_EQ(got.SerializeAsString(), matrix.SerializeAsString());
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a", "sparseMatrices/square"));
  v1::SparseMatrix of_a;
  ASSERT_TRUE(Get("sparseMatrices/a", &of_a).ok());
  EXPECT_EQ(test_.Info().usage().resident_bytes(), of_a.resident_bytes() + matrix.resident_bytes());

  const Product sent = Multiply(*stub_, ProductOf("a", "a"));
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/square").bytes == sent.bytes);
  // A factor of the next product.
  const Product cube = Multiply(*stub_, ProductOf("square", "a"));
  ASSERT_TRUE(cube.status.ok());
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(cube.header->shape(), cube.bytes)) ==
              Reference(CsrFromBytes<float>(sent.header->shape(), sent.bytes), a));
  ExpectError(request, grpc::ALREADY_EXISTS, "sparseMatrices/square", "");
  request.mutable_keep()->clear_id();
  const Product named = Multiply(*stub_, request);
  ASSERT_TRUE(named.status.ok());
  EXPECT_THAT(named.result->sparse_matrix().name(), testing::MatchesRegex("sparseMatrices/[0-9a-f]+"));
}

TEST_F(MatrixServiceTest, ResultsAreTheSameBitsEveryTime) {
  HostCsr<float> a = RandomCsr<float>(400, 400, 30, 12);
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] *= 1.0f / static_cast<float>(i % 97 + 3);
  Put("a", a);
  const Product first = Multiply(*stub_, ProductOf("a", "a"));
  ASSERT_TRUE(first.status.ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Multiply(*stub_, ProductOf("a", "a")).bytes == first.bytes);
}

TEST_F(MatrixServiceTest, EachWrongProductNamesItsField) {
  Put("a", RandomCsr<float>(6, 5, 3, 1));
  Put("b", RandomCsr<float>(5, 4, 3, 2));
  Put("d", RandomCsr<double>(5, 4, 3, 2));
  const auto with = [](const std::function<void(v1::MultiplyRequest&)>& spoil) {
    v1::MultiplyRequest request = ProductOf("a", "b");
    spoil(request);
    return request;
  };
  using R = v1::MultiplyRequest;
  ExpectError(with([](R& r) { r.set_a("a"); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "a");
  ExpectError(with([](R& r) { r.set_b("volumes/b"); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "b");
  ExpectError(with([](R& r) { r.set_b("sparseMatrices/none"); }), grpc::NOT_FOUND, "sparseMatrices/none", "");
  ExpectError(ProductOf("b", "a"), grpc::INVALID_ARGUMENT, "6 rows", "b");
  ExpectError(ProductOf("a", "d"), grpc::INVALID_ARGUMENT, "float64", "b");
  ExpectError(with([](R& r) { r.mutable_options()->set_precision(v1::PRECISION_FP64); }), grpc::INVALID_ARGUMENT,
              "float32", "a");
  ExpectError(with([](R& r) { r.mutable_options()->set_precision(v1::Precision(99)); }), grpc::UNIMPLEMENTED,
              "precision", "options.precision");
  ExpectError(with([](R& r) { r.mutable_options()->set_semiring(v1::Semiring(99)); }), grpc::UNIMPLEMENTED, "semiring",
              "options.semiring");
  ExpectError(with([](R& r) { r.mutable_options()->set_alpha(std::numeric_limits<double>::infinity()); }),
              grpc::INVALID_ARGUMENT, "finite", "options.alpha");
  ExpectError(with([](R& r) { r.mutable_options()->set_beta(2); }), grpc::INVALID_ARGUMENT, "addend", "options.beta");
  ExpectError(with([](R& r) { r.mutable_options()->set_complement_mask(true); }), grpc::INVALID_ARGUMENT,
              "complement_mask needs one", "options.mask");
  ExpectError(with([](R& r) { r.mutable_options()->set_mask("sparseMatrices/b"); }), grpc::INVALID_ARGUMENT, "5x4",
              "options.mask");
  ExpectError(with([](R& r) { r.mutable_options()->set_addend("sparseMatrices/b"); }), grpc::INVALID_ARGUMENT, "5x4",
              "options.addend");
  ExpectError(with([](R& r) {
                r.mutable_options()->set_semiring(v1::SEMIRING_MIN_PLUS);
                r.mutable_options()->set_alpha(2);
              }),
              grpc::INVALID_ARGUMENT, "plus-times", "options.alpha");
  ExpectError(with([](R& r) { r.mutable_keep()->set_id("no/id"); }), grpc::INVALID_ARGUMENT, "must match", "keep.id");
}

TEST_F(MatrixServiceTest, OptionsReachTheProduct) {
  const HostCsr<float> a = RandomCsr<float>(20, 30, 4, 13), b = RandomCsr<float>(20, 25, 5, 14);
  const HostCsr<float> mask = RandomCsr<float>(30, 25, 6, 15), d = RandomCsr<float>(30, 25, 3, 16);
  Put("a", a);
  Put("b", b);
  Put("mask", mask);
  Put("d", d);
  v1::MultiplyRequest request = ProductOf("a", "b");
  request.mutable_options()->set_transpose_a(true);
  const auto run = [&] {
    const Product product = Multiply(*stub_, request);
    EXPECT_TRUE(product.status.ok()) << product.status.error_message();
    if (!product.status.ok()) return Entries<double>();
    return EntriesOf(CsrFromBytes<float>(product.header->shape(), product.bytes));
  };
  const Entries<double> plain = Reference(Transposed(a), b);
  EXPECT_TRUE(run() == plain);

  const Entries<double> allowed = EntriesOf(mask), added = EntriesOf(d);
  for (bool complement : {false, true}) {
    request.mutable_options()->set_mask("sparseMatrices/mask");
    request.mutable_options()->set_complement_mask(complement);
    request.mutable_options()->set_alpha(3);
    request.mutable_options()->set_addend("sparseMatrices/d");
    request.mutable_options()->set_beta(-2);
    Entries<double> expected;
    for (const auto& [place, value] : plain) {
      if ((allowed.count(place) > 0) != complement) expected[place] = 3 * value;
    }
    for (const auto& [place, value] : added) expected[place] += -2 * value;
    EXPECT_TRUE(run() == expected) << complement;
  }

  request = ProductOf("a", "b");
  request.mutable_options()->set_transpose_a(true);
  request.mutable_options()->set_semiring(v1::SEMIRING_OR_AND);
  Entries<double> ones;
  for (const auto& [place, value] : plain) ones[place] = 1;
  EXPECT_TRUE(run() == ones);

  // 1 + 2^-12 has more bits than the reduced precisions keep.
  HostCsr<float> fine = Full(1, 1, 1 + std::ldexp(1.0f, -12));
  Put("fine", fine);
  for (const auto& [precision, value] :
       std::map<v1::Precision, float>{{v1::PRECISION_FP16, 1.0f},
                                      {v1::PRECISION_BF16, 1.0f},
                                      {v1::PRECISION_TF32, 1.0f},
                                      {v1::PRECISION_FP32, fine.values[0] * fine.values[0]}}) {
    request = ProductOf("fine", "fine");
    request.mutable_options()->set_precision(precision);
    EXPECT_EQ((run()[{0, 0}]), value) << v1::Precision_Name(precision);
  }
}

TEST_F(MatrixServiceTest, ShortestPathsAndProductsOfThree) {
  const HostCsr<float> a = RandomCsr<float>(40, 40, 4, 20), p = RandomCsr<float>(40, 12, 2, 21);
  Put("a", a);
  Put("p", p);
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_options()->set_semiring(v1::SEMIRING_MIN_PLUS);
  const Product paths = Multiply(*stub_, request);
  ASSERT_TRUE(paths.status.ok()) << paths.status.error_message();
  EXPECT_EQ(paths.result->report().options().semiring(), v1::SEMIRING_MIN_PLUS);
  Entries<double> shortest;
  for (const auto& [place, value] : EntriesOf(a)) {
    for (int64_t i = a.row_offsets[place.second]; i < a.row_offsets[place.second + 1]; ++i) {
      const double sum = value + a.values[i];
      const auto [at, is_new] = shortest.try_emplace({place.first, a.column_indices[i]}, sum);
      if (!is_new) at->second = std::min(at->second, sum);
    }
  }
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(paths.header->shape(), paths.bytes)) == shortest);

  // P^T A P: what is in the middle stays on the device.
  request = ProductOf("a", "p");
  request.mutable_keep()->set_id("ap");
  ASSERT_TRUE(Multiply(*stub_, request).status.ok());
  request = ProductOf("p", "ap");
  request.mutable_options()->set_transpose_a(true);
  const Product coarse = Multiply(*stub_, request);
  ASSERT_TRUE(coarse.status.ok()) << coarse.status.error_message();
  const HostCsr<float> ap = CsrFromBytes<float>(Multiply(*stub_, ProductOf("a", "p")).header->shape(),
                                                Multiply(*stub_, ProductOf("a", "p")).bytes);
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(coarse.header->shape(), coarse.bytes)) == Reference(Transposed(p), ap));

  // A^T A of a rectangle.
  request = ProductOf("p", "p");
  request.mutable_options()->set_transpose_a(true);
  const Product gram = Multiply(*stub_, request);
  ASSERT_TRUE(gram.status.ok()) << gram.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(gram.header->shape(), gram.bytes)) == Reference(Transposed(p), p));
}

TEST_F(MatrixServiceTest, ADeadlineThatTheQueueLeavesNoTimeForIsRefusedAtOnce) {
  Put("a", RandomCsr<float>(50, 50, 4, 17));
  const auto idle = [](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; };
  for (int i = 0; i < CostModel::kMinSamples; ++i) {
    ASSERT_TRUE(Multiply(*stub_, ProductOf("a", "a")).status.ok());
    test_.WaitForUsage(idle);  // and the cost is learnt
  }
  JobBlocker blocker(context().jobs);
  Job job;  // interactive: it comes before the product
  job.predicted = std::chrono::hours(1);
  job.run = [](const absl::StatusOr<const ExecContext*>&) {};
  ASSERT_TRUE(context().jobs.Submit(std::move(job)).ok());
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_STATUS(status, grpc::DEADLINE_EXCEEDED, "deadline cannot be met");
  EXPECT_EQ(DetailsOf(status).reason, "DEADLINE_UNREACHABLE");
  EXPECT_TRUE(DetailsOf(status).retry);
}

TEST_F(MatrixServiceTest, DeletedFactorsServeTheProductThatHoldsThem) {
  const HostCsr<float> a = RandomCsr<float>(50, 50, 4, 18);
  Put("a", a);
  JobBlocker blocker(context().jobs);
  Product product;
  std::thread client([&] { product = Multiply(*stub_, ProductOf("a", "a")); });
  test_.WaitForUsage([](const v1::Usage& u) { return u.jobs() == 2; });
  EXPECT_TRUE(Delete("sparseMatrices/a").ok());
  EXPECT_GT(test_.Info().usage().resident_bytes(), 0);
  blocker.Release();
  client.join();
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(product.header->shape(), product.bytes)) == Reference(a, a));
  EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
}

TEST_F(MatrixServiceTest, MetricsKnowOfMatricesAndProducts) {
  const HostCsr<float> a = RandomCsr<float>(30, 30, 3, 19);
  Put("a", a);
  Put("b", RandomCsr<float>(29, 30, 3, 19));
  ASSERT_TRUE(Multiply(*stub_, ProductOf("a", "a")).status.ok());
  EXPECT_FALSE(Multiply(*stub_, ProductOf("a", "b")).status.ok());
  int64_t products = 0;
  for (int32_t k : a.column_indices) products += a.row_offsets[k + 1] - a.row_offsets[k];
  test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  const std::string text = context().metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"sparse_matrix\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_flops_total " + std::to_string(2 * products) + "\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_nonzeros_total " + std::to_string(Reference(a, a).size()) + "\n"));
  EXPECT_THAT(text, HasSubstr("grpc_method=\"Multiply\",grpc_service=\"intrawarp.v1.SparseMatrixService\",grpc_type="
                              "\"server_stream\"} 2\n"));
}

// Says that it has started, and computes until Go.
class FrameGate {
 public:
  explicit FrameGate(JobQueue& jobs) {
    Job job;
    job.job_class = JobClass::kFrame;
    job.run = [this](const absl::StatusOr<const ExecContext*>&) {
      started_.set_value();
      go_.get_future().wait();
    };
    EXPECT_TRUE(jobs.Submit(std::move(job)).ok());
  }
  void AwaitStart() { started_.get_future().wait(); }
  void Go() { go_.set_value(); }

 private:
  std::promise<void> started_, go_;
};

struct Gates {
  DeviceGates gates_;
};

// 360 million multiplications and 200 MB, far more than a stream that is not read takes.
class LongProductTest : protected Gates, public MatrixServiceTest {
 protected:
  LongProductTest() : MatrixServiceTest(Options(gates_)) { Put("a", RandomCsr<float>(5000, 5000, 300, 22)); }
  static ServerOptions Options(DeviceGates& gates) {
    ServerOptions options = TestServer::DefaultOptions();
    options.open_device = [&gates](absl::string_view spec) -> absl::StatusOr<std::unique_ptr<Device>> {
      INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(spec));
      return std::make_unique<GatedDevice>(std::move(device), gates);
    };
    options.limits.resident_capacity_bytes = int64_t{4} << 30;
    options.limits.pinned_capacity_bytes = int64_t{1} << 30;
    return options;
  }
  v1::Usage Idle() {
    return test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  }
  void ExpectNothingIsLeft(const v1::Usage& before, const std::string& outcomes) {
    EXPECT_EQ(Idle().ShortDebugString(), before.ShortDebugString());
    EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a"));
    const std::string text = context().metrics.Scrape();
    EXPECT_THAT(text, ContainsRegex("intrawarp_products_total[{]outcome=\"(" + outcomes + ")\"[}] 1\n"));
    EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 0\n"));
    // The server goes on.
    Put("one", Full(1, 1, 3));
    EXPECT_TRUE(Multiply(*stub_, ProductOf("one", "one")).status.ok());
  }
};

TEST_F(LongProductTest, AFrameStartsAtItsNextCheckpoint) {
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_keep()->set_id("product");
  grpc::ClientContext call;
  // The frame comes in the middle of the product's first step, however fast the device is.
  gates_.allocate.Close();
  auto reader = stub_->Multiply(&call, request);
  gates_.allocate.AwaitSomebody();
  FrameGate frame(context().jobs);
  gates_.allocate.Open();
  frame.AwaitStart();
  EXPECT_EQ(context().jobs.started(JobClass::kBatch), 1) << "held, and not at its end";
  EXPECT_EQ(context().matrices.size(), 1);
  frame.Go();
  test_.WaitForUsage([](const v1::Usage& u) { return u.jobs() < 2; });
  v1::MultiplyResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(context().matrices.size(), 2);
}

TEST_F(LongProductTest, CancelledWhileItIsHeldGivesItsMemoryBackAtOnce) {
  const v1::Usage before = Idle();
  grpc::ClientContext call;
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (response.progress().step() != v1::MultiplyProgress::STEP_PLANNED);
  FrameGate frame(context().jobs);
  frame.AwaitStart();
  EXPECT_GT(test_.Info().usage().resident_bytes(), before.resident_bytes());
  call.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  const v1::Usage after = test_.WaitForUsage([&](const v1::Usage& u) {
    return u.resident_bytes() == before.resident_bytes() && u.streams() == 0 && u.jobs() == 1;
  });
  EXPECT_EQ(after.resident_bytes(), before.resident_bytes()) << "while the frame still computes";
  EXPECT_EQ(after.jobs(), 1);
  frame.Go();
  ExpectNothingIsLeft(before, "cancelled");
}

TEST_F(LongProductTest, CancelledHalfWayLeavesNothing) {
  const v1::Usage before = Idle();
  grpc::ClientContext call;
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  v1::MultiplyResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (response.progress().step() != v1::MultiplyProgress::STEP_PLANNED);
  EXPECT_GT(test_.Info().usage().resident_bytes(), before.resident_bytes());
  call.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  ExpectNothingIsLeft(before, "cancelled");
}

TEST_F(LongProductTest, ADeadlineHalfWayLeavesNothing) {
  const v1::Usage before = Idle();
  const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(500);
  grpc::ClientContext call;
  call.set_deadline(deadline);
  auto reader = stub_->Multiply(&call, ProductOf("a", "a"));
  // What comes meanwhile is not read, and most of it is not sent.
  std::this_thread::sleep_until(deadline);
  v1::MultiplyResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  // The client may give up before the server's own clock has come so far.
  ExpectNothingIsLeft(before, "deadline_missed|cancelled");
}

class SmallMemoryTest : public MatrixServiceTest {
 protected:
  SmallMemoryTest() : MatrixServiceTest(Options()) {}
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.resident_capacity_bytes = int64_t{1} << 20;
    options.limits.max_matrix_bytes = 100000;
    return options;
  }
};

TEST_F(SmallMemoryTest, AProductTooLargeIsRefusedWithItsEstimateBeforeItStarts) {
  Put("column", Full(600, 1, 2));
  Put("row", Full(1, 600, 3));
  const v1::Usage before = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  for (bool keep : {false, true}) {
    v1::MultiplyRequest request = ProductOf("column", "row");
    if (keep) request.mutable_keep();
    const Product product = Multiply(*stub_, request);
    EXPECT_STATUS(product.status, grpc::FAILED_PRECONDITION, "at most 360000 entries from 360000 multiplications");
    EXPECT_EQ(DetailsOf(product.status).reason, "EXCEEDS_CAPACITY");
    EXPECT_FALSE(DetailsOf(product.status).retry) << "waiting makes no room for what can never fit";
    EXPECT_TRUE(product.progress.empty());
  }
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; }).ShortDebugString(),
            before.ShortDebugString());
  EXPECT_THAT(context().metrics.Scrape(), HasSubstr("intrawarp_products_total{outcome=\"rejected\"} 2\n"));
  // The server goes on, and the other way round it fits.
  const Product dot = Multiply(*stub_, ProductOf("row", "column"));
  ASSERT_TRUE(dot.status.ok()) << dot.status.error_message();
  EXPECT_EQ(CsrFromBytes<float>(dot.header->shape(), dot.bytes).values, std::vector<float>{3600});
}

TEST_F(SmallMemoryTest, ColumnsThatWouldBecomeRowsAreCountedFirst) {
  HostCsr<float> wide = Full(1, 1, 1);
  wide.columns = std::numeric_limits<int32_t>::max();
  Put("wide", wide);
  Put("one", Full(1, 1, 1));
  v1::MultiplyRequest request = ProductOf("wide", "one");
  request.mutable_options()->set_transpose_a(true);
  const Product product = Multiply(*stub_, request);
  EXPECT_EQ(product.status.error_code(), grpc::FAILED_PRECONDITION) << product.status.error_message();
  EXPECT_EQ(DetailsOf(product.status).reason, "EXCEEDS_CAPACITY");
}

TEST_F(SmallMemoryTest, UploadsAreCappedBeforeAnythingIsAllocated) {
  UploadData large = MakeMatrix(Full(200, 100, 1), "u");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, large)).field, "header.total_bytes");
  for (int i = 0; i < 20; ++i) {
    const grpc::Status status =
        Upload(*bulk_, MakeMatrix(Full(100, 100, static_cast<float>(i)), std::to_string(i)), nullptr, 1 << 20);
    if (status.ok()) continue;
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).reason, "RESIDENT_MEMORY");
    EXPECT_EQ(i, 12);  // of 81664 bytes each
    return;
  }
  ADD_FAILURE() << "nothing was refused";
}

class SmallTransferTest : public MatrixServiceTest {
 protected:
  SmallTransferTest() : MatrixServiceTest(Options()) {}
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.resident_capacity_bytes = int64_t{4} << 30;
    options.limits.pinned_capacity_bytes = int64_t{40} << 20;
    return options;
  }
};

TEST_F(SmallTransferTest, WhatIsTooLargeToBeSentCanBeKeptAndDownloaded) {
  constexpr int kSide = 2500;  // 50 MB
  Put("column", Full(kSide, 1, 2));
  Put("row", Full(1, kSide, 3));
  v1::MultiplyRequest request = ProductOf("column", "row");
  const Product sent = Multiply(*stub_, request);
  EXPECT_EQ(sent.status.error_code(), grpc::FAILED_PRECONDITION) << sent.status.error_message();
  EXPECT_EQ(DetailsOf(sent.status).reason, "EXCEEDS_CAPACITY");
  request.mutable_keep()->set_id("c");
  const Product kept = Multiply(*stub_, request);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/c");
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  const HostCsr<float> c = CsrFromBytes<float>(back.header.sparse_matrix().shape(), back.bytes);
  EXPECT_EQ(c.entries(), int64_t{kSide} * kSide);
  EXPECT_TRUE(std::all_of(c.values.begin(), c.values.end(), [](float v) { return v == 6; }));
}

TEST_F(SmallTransferTest, AProductWhoseAnswerFindsNoRoomIsRefusedBeforeItsValuesAreMade) {
  Put("column", Full(1000, 1, 2));
  Put("row", Full(1, 1000, 3));
  Ledger& ledger = context().ledger;
  absl::StatusOr<Grant> others = ledger.Admit({{.pinned_bytes = ledger.available(Resource::kPinned)}});
  ASSERT_TRUE(others.ok()) << others.status();
  const Product refused = Multiply(*stub_, ProductOf("column", "row"));
  EXPECT_EQ(refused.status.error_code(), grpc::RESOURCE_EXHAUSTED) << refused.status.error_message();
  EXPECT_EQ(DetailsOf(refused.status).reason, "PINNED_MEMORY");
  EXPECT_TRUE(DetailsOf(refused.status).retry);
  // An error overtakes progress that still waits to be sent: any part of it may have arrived.
  for (const v1::MultiplyProgress& progress : refused.progress) {
    EXPECT_NE(progress.step(), v1::MultiplyProgress::STEP_MULTIPLIED);
  }
  v1::MultiplyRequest kept = ProductOf("column", "row");
  kept.mutable_keep()->set_id("c");
  EXPECT_TRUE(Multiply(*stub_, kept).status.ok()) << "needs no pinned memory";
  *others = Grant();
  EXPECT_TRUE(Multiply(*stub_, ProductOf("column", "row")).status.ok());
}

TEST(MatrixStop, ProductUnderWayEndsWithTheServer) {
  TestServer test;
  auto stub = test.Stub<v1::SparseMatrixService>();
  ASSERT_TRUE(Upload(*test.Stub<v1::BulkService>(), MakeMatrix(RandomCsr<float>(50, 50, 4, 1), "u", "a")).ok());
  JobBlocker blocker(test.server->context().jobs);
  Product product;
  std::thread client([&] { product = Multiply(*stub, ProductOf("a", "a")); });
  test.WaitForUsage([](const v1::Usage& u) { return u.jobs() == 2; });
  std::thread stop([&] { test.server->Stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  blocker.Release();
  stop.join();
  client.join();
  // It was given time to end well. The end of the connection may overtake the answer: then the error is the client's
  // own, without the details that those of the server have.
  EXPECT_TRUE(product.status.ok() || product.status.error_details().empty()) << product.status.error_message();
}

}  // namespace
}  // namespace intrawarp::server
