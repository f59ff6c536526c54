// SPDX-License-Identifier: Apache-2.0
#include "io/format/matrix_market.h"

#include <zlib.h>

#include <cmath>
#include <limits>

#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using MatrixMarketTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kData = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
const char kGeneral[] = "%%MatrixMarket matrix coordinate real general\n";

std::string Gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream z = {};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = text.size();
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = out.size();
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

TEST_F(MatrixMarketTest, ReadsGeneralReal) {
  const auto m =
      ReadMatrixMarket(Put("a.mtx", std::string(kGeneral) + "% a comment\n\n  %another\n 3 4  5\n1 1 .5\n3 4 -1e-3\n\n"
                                                            "2\t1 +7 \r\n1 1 2\n3 1 inf"));
  ASSERT_THAT(m, Succeeds());
  EXPECT_EQ(m->rows, 3);
  EXPECT_EQ(m->columns, 4);
  EXPECT_EQ(m->row_indices, (std::vector<int32_t>{0, 2, 1, 0, 2}));
  EXPECT_EQ(m->column_indices, (std::vector<int32_t>{0, 3, 0, 0, 0}));
  EXPECT_EQ(m->values, (std::vector<double>{.5, -1e-3, 7, 2, std::numeric_limits<double>::infinity()}));
}

TEST_F(MatrixMarketTest, ExpandsSymmetries) {
  const auto symmetric =
      ReadMatrixMarket(Put("s.mtx", "%%matrixmarket MATRIX Coordinate Integer Symmetric\n2 2 2\n1 1 5\n2 1 -3\n"));
  ASSERT_THAT(symmetric, Succeeds());
  EXPECT_EQ(symmetric->row_indices, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(symmetric->column_indices, (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(symmetric->values, (std::vector<double>{5, -3, -3}));
  const auto skew =
      ReadMatrixMarket(Put("k.mtx", "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 4\n"));
  ASSERT_THAT(skew, Succeeds());
  EXPECT_EQ(skew->values, (std::vector<double>{4, -4}));
  const auto pattern = ReadMatrixMarket(Put("p.mtx", "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n2 1\n"));
  ASSERT_THAT(pattern, Succeeds());
  EXPECT_EQ(pattern->values, (std::vector<double>{1}));
}

TEST_F(MatrixMarketTest, WrittenMatricesReadBackExactly) {
  HostCsr<double> m = {3, 5, {0, 2, 2, 4}, {0, 4, 1, 2}, {0.1, -1e-310, 0, 1e300}};
  for (const char* name : {"a.mtx", "a.mtx.gz"}) {
    ASSERT_THAT(WriteMatrixMarket(Path(name), m), Succeeds());
    const auto read = ReadMatrixMarket(Path(name));
    ASSERT_THAT(read, Succeeds());
    EXPECT_EQ(*CsrFromCoo<double>(*read), m);
  }
  EXPECT_EQ(Get(Path("a.mtx")).substr(0, 2), "%%");
  EXPECT_EQ(Get(Path("a.mtx.gz")).substr(0, 2), "\x1f\x8b");
  const HostCsr<float> f = {1, 3, {0, 3}, {0, 1, 2}, {0.1f, -INFINITY, 3e38f}};
  ASSERT_THAT(WriteMatrixMarket(Path("f.mtx"), f), Succeeds());
  EXPECT_EQ(*CsrFromCoo<float>(*ReadMatrixMarket(Path("f.mtx"))), f);
  ASSERT_THAT(WriteMatrixMarket(Path("e.mtx"), HostCsr<float>()), Succeeds());
  EXPECT_EQ(*CsrFromCoo<float>(*ReadMatrixMarket(Path("e.mtx"))), HostCsr<float>());
}

TEST_F(MatrixMarketTest, FilesOfManyBuffersReadBack) {
  HostCsr<double> m;
  m.rows = m.columns = 1000;
  for (int r = 0; r < m.rows; ++r) {
    for (int c = 0; c < m.columns; c += 3) {
      m.column_indices.push_back(c);
      m.values.push_back(r / (c + 1.0));
    }
    m.row_offsets.push_back(m.entries());
  }
  for (const char* name : {"a.mtx", "a.mtx.gz"}) {
    ASSERT_THAT(WriteMatrixMarket(Path(name), m), Succeeds());
    EXPECT_EQ(*CsrFromCoo<double>(*ReadMatrixMarket(Path(name))), m);
  }
}

TEST_F(MatrixMarketTest, HeadersAreChecked) {
  const auto read = [&](const std::string& text) { return ReadMatrixMarket(Put("a.mtx", text)); };
  EXPECT_THAT(read(""), Fails(kInvalid, "header: the file is empty"));
  EXPECT_THAT(read("1 2 3\n"), Fails(kInvalid, "header: does not begin"));
  EXPECT_THAT(read("%%MatrixMarket vector coordinate real general\n"), Fails(kInvalid, "header: the object"));
  EXPECT_THAT(read("%%MatrixMarket matrix list real general\n"), Fails(kInvalid, "header: the format"));
  EXPECT_THAT(read("%%MatrixMarket matrix array real general\n"), Fails(kUnimplemented, "header: array"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate complex general\n"), Fails(kUnimplemented, "header: complex"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate real hermitian\n"), Fails(kUnimplemented, "header: hermitian"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate text general\n"), Fails(kInvalid, "header: the field"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate real odd\n"), Fails(kInvalid, "header: the symmetry"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate real general x\n"), Fails(kInvalid, "header: more than"));
  EXPECT_THAT(read(kGeneral), Fails(kInvalid, "size: missing"));
  EXPECT_THAT(read(std::string(kGeneral) + "2 2\n"), Fails(kInvalid, "size: must be three"));
  EXPECT_THAT(read(std::string(kGeneral) + "2 2 1 1\n"), Fails(kInvalid, "size: must be three"));
  EXPECT_THAT(read(std::string(kGeneral) + "-2 2 1\n"), Fails(kInvalid, "size: must be three"));
  EXPECT_THAT(read(std::string(kGeneral) + "2 99999999999999999999 1\n"), Fails(kInvalid, "size: must be three"));
  EXPECT_THAT(read(std::string(kGeneral) + "2147483648 2 1\n"), Fails(kInvalid, "size: 2147483648x2"));
  EXPECT_THAT(read(std::string(kGeneral) + "0 2 1\n1 1 1\n"), Fails(kInvalid, "size: entries without"));
  EXPECT_THAT(read("%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n"), Fails(kInvalid, "not square"));
  EXPECT_THAT(read(std::string(kGeneral) + std::string(10000, '%')), Fails(kInvalid, "line 2: too long"));
}

// A header may promise anything: nothing is taken for it that the file's length cannot hold.
TEST_F(MatrixMarketTest, HeadersThatLie) {
  const std::string huge = std::string(kGeneral) + "2 2 9000000000000000000\n1 1 1\n";
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", huge)), Fails(absl::StatusCode::kResourceExhausted, "size: 2x2"));
  const std::string large = std::string(kGeneral) + "2 2 500000000000000000\n1 1 1\n";
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", large), std::numeric_limits<int64_t>::max()), Fails(kData, "too short"));
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx.gz", Gzip(large)), std::numeric_limits<int64_t>::max()),
              Fails(kData, "too short"));
  const std::string some = std::string(kGeneral) + "2 2 1000\n1 1 1\n";
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", some)), Fails(kData, "too short"));
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx.gz", Gzip(some))), Fails(kData, "data: 1 entries"));
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", std::string(kGeneral) + "2147483647 1 0\n"), 1 << 20),
              Fails(absl::StatusCode::kResourceExhausted, "size: 2147483647x1"));
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", std::string(kGeneral) + "2 2 2\n1 1 1000\n")), Fails(kData, "data: 1"));
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx", std::string(kGeneral) + "2 2 1\n1 1 1\n2 2 1\n")),
              Fails(kInvalid, "line 4: more than the 1"));
}

TEST_F(MatrixMarketTest, ErrorsNameTheLine) {
  const auto read = [&](const std::string& entry) {
    return ReadMatrixMarket(Put("a.mtx", std::string(kGeneral) + "2 3 1\n" + entry + "\n"));
  };
  EXPECT_THAT(read("x 1 1"), Fails(kInvalid, "line 3: row is not"));
  EXPECT_THAT(read("1 x 1"), Fails(kInvalid, "line 3: column is not"));
  EXPECT_THAT(read("0 1 1"), Fails(kInvalid, "line 3: row 0"));
  EXPECT_THAT(read("3 1 1"), Fails(kInvalid, "line 3: row 3"));
  EXPECT_THAT(read("1 4 1"), Fails(kInvalid, "line 3: column 4"));
  EXPECT_THAT(read("1 -1 1"), Fails(kInvalid, "line 3: column -1"));
  EXPECT_THAT(read("99999999999 1 1"), Fails(kInvalid, "line 3: row is not"));
  EXPECT_THAT(read("1 1    "), Fails(kInvalid, "line 3: value is not"));
  EXPECT_THAT(read("1 1 1e999"), Fails(kInvalid, "line 3: value is not"));
  EXPECT_THAT(read("1 1 1 2"), Fails(kInvalid, "line 3: more words"));
  EXPECT_THAT(read("1 1 +-1"), Fails(kInvalid, "line 3: value is not"));
  EXPECT_THAT(ReadMatrixMarket(Put("k.mtx", "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 4\n")),
              Fails(kInvalid, "line 3: an entry on the diagonal"));
  EXPECT_THAT(ReadMatrixMarket(Put("i.mtx", "%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 4.5\n")),
              Fails(kInvalid, "line 3: value is not an integer"));
}

TEST_F(MatrixMarketTest, DamagedGzip) {
  std::string text = std::string(kGeneral) + "1000 1000 1000\n";
  for (int i = 1; i <= 1000; ++i) text += std::to_string(i) + " " + std::to_string(1 + i * 7919 % 1000) + " 0.25\n";
  const std::string zip = Gzip(text);
  ASSERT_THAT(ReadMatrixMarket(Put("a.mtx.gz", zip)), Succeeds());
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx.gz", zip.substr(0, zip.size() / 2))), Fails(kData, "data: "));
  std::string flipped = zip;
  flipped[zip.size() - 6] ^= 1;
  EXPECT_THAT(ReadMatrixMarket(Put("a.mtx.gz", flipped)), Fails(kData, "data: "));
}

TEST_F(MatrixMarketTest, FilesThatAreNotThere) {
  EXPECT_THAT(ReadMatrixMarket(Path("none.mtx")), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(ReadMatrixMarket(folder_.string()), Fails(kInvalid, "file: not a regular file"));
  const HostCsr<float> m = {1, 1, {0, 1}, {0}, {1}};
  EXPECT_THAT(WriteMatrixMarket(Path("no/such/folder.mtx"), m), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(WriteMatrixMarket("/dev/full", m), Fails(absl::StatusCode::kResourceExhausted, "file: "));
  EXPECT_THAT(WriteMatrixMarket(Path("a.mtx"), HostCsr<float>{1, 1, {0, 1}, {1}, {1}}),
              Fails(kInvalid, "column_indices: "));
}

// Sizes as the SuiteSparse collection publishes them; zeros that are stored count.
TEST_F(MatrixMarketTest, ReadsPublicMatrices) {
  if (!TestData("")) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  struct Row {
    const char* name;
    int32_t rows;
    int64_t entries;
  };
  for (const Row& row :
       {Row{"Pd.mtx", 8081, 13036}, Row{"ani4.mtx.gz", 3081, 20971}, Row{"bcsstk13.mtx.gz", 2003, 83883},
        Row{"c-39.mtx.gz", 9271, 136811}, Row{"ca-CondMat.mtx.gz", 23133, 186936}, Row{"cryg2500.mtx", 2500, 12349},
        Row{"dw8192.mtx.gz", 8192, 41746}, Row{"email-Eu-core.mtx", 1005, 25571}, Row{"hangGlider_2.mtx", 1647, 14754},
        Row{"lns_3937.mtx.gz", 3937, 25407}, Row{"lock1074.mtx", 1074, 51588}, Row{"n1024-l1.mtx.gz", 1024, 32768},
        Row{"n1024-l2.mtx.gz", 1024, 32768}, Row{"p2p-Gnutella04.mtx", 10879, 39994},
        Row{"rajat01.mtx.gz", 6833, 43250}, Row{"tols4000.mtx", 4000, 8784}, Row{"wiki-Vote.mtx", 8297, 103689}}) {
    const auto coo = ReadMatrixMarket(*TestData(std::string("sparse/") + row.name));
    ASSERT_THAT(coo, Succeeds()) << row.name;
    const auto csr = CsrFromCoo<double>(*coo);
    ASSERT_THAT(csr, Succeeds());
    EXPECT_EQ(csr->rows, row.rows) << row.name;
    EXPECT_EQ(csr->columns, row.rows) << row.name;
    EXPECT_EQ(csr->entries(), row.entries) << row.name;
    EXPECT_THAT(ValidateCsr(*csr), Succeeds());
  }
}

}  // namespace
}  // namespace intrawarp::io
