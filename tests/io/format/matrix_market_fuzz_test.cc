// SPDX-License-Identifier: Apache-2.0
// Matrix Market files with random damage, the same in every run: each is refused with a status of the contract, or read
// as a matrix whose parts fit together.
#include <zlib.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/format/matrix_market.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

class MatrixMarketFuzzTest : public FileTest {
 protected:
  // A file system may wait for the disk when a file is written over.
  std::string PutNew(const std::string& name, const std::string& contents) const {
    std::filesystem::remove(Path(name));
    return Put(name, contents);
  }
};

const std::vector<std::string>& Seeds() {
  static const auto* const seeds = new std::vector<std::string>{
      "%%MatrixMarket matrix coordinate real general\n% comment\n3 4 5\n1 1 .5\n3 4 -1e-3\n2 1 7\n1 1 2\n3 1 inf\n",
      "%%MatrixMarket matrix coordinate integer symmetric\n3 3 3\n1 1 5\n2 1 -3\n3 2 4\n",
      "%%MatrixMarket matrix coordinate real skew-symmetric\n3 3 2\n2 1 4\n3 1 nan\n",
      "%%MatrixMarket matrix coordinate pattern general\n5 2 3\n2 1\n5 2\n1 1\n",
      "%%MatrixMarket matrix coordinate pattern symmetric\n0 0 0\n"};
  return *seeds;
}

// Texts that readers of numbers and of lines trip over.
const std::vector<std::string>& Tokens() {
  static const auto* const tokens =
      new std::vector<std::string>{"0",    "-1",   "1",      "2147483647", "2147483648", "9223372036854775807",
                                   "1e19", "1e-9", "-0",     "nan",        "inf",        "99999999999999999999999",
                                   " ",    "\n",   "\r\n",   "%",          "%%",         "general",
                                   "real", "\t",   "\v\f\n", "+",          "1.",         "0x1p3"};
  return *tokens;
}

class Damage {
 public:
  explicit Damage(uint32_t seed) : random_(seed) {}

  std::string Apply(std::string text) {
    const int times = 1 + Below(2);
    for (int i = 0; i < times; ++i) Once(text);
    return text;
  }
  int Below(size_t n) { return n == 0 ? 0 : static_cast<int>(random_() % n); }

 private:
  void Once(std::string& text) {
    const size_t at = Below(text.size() + 1), length = Below(std::min<size_t>(text.size() - at, 12) + 1);
    switch (Below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(Below(text.size() + 1), 20));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        ReplaceWord(text, at);
    }
  }
  void ReplaceWord(std::string& text, size_t at) {
    const size_t begin = text.find_last_of(" \n", at) + 1,
                 end = std::min(text.find_first_of(" \n", begin), text.size());
    text.replace(begin, end - begin, Tokens()[Below(Tokens().size())]);
  }

  std::mt19937 random_;
};

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

// True when the file was read.
bool ExpectRefusedOrWhole(const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 16;
  const absl::StatusOr<HostCoo> coo = ReadMatrixMarket(path, kMaxBytes);
  if (!coo.ok()) {
    static const std::set<absl::StatusCode> codes = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss,
                                                     absl::StatusCode::kUnimplemented,
                                                     absl::StatusCode::kResourceExhausted};
    EXPECT_EQ(codes.count(coo.status().code()), 1u) << coo.status();
    if (!NamedField(coo.status()).empty()) {
      EXPECT_EQ(FieldOf(coo.status()), NamedField(coo.status())) << coo.status();
    }
    return false;
  }
  EXPECT_GE(coo->rows, 0);
  EXPECT_GE(coo->columns, 0);
  EXPECT_LE(16 * coo->entries(), kMaxBytes);
  EXPECT_EQ(coo->row_indices.size(), coo->values.size());
  EXPECT_EQ(coo->column_indices.size(), coo->values.size());
  const auto csr = CsrFromCoo<float>(*coo);
  EXPECT_THAT(csr, Succeeds());
  if (csr.ok()) {
    EXPECT_THAT(ValidateCsr(*csr), Succeeds());
  }
  return true;
}

TEST_F(MatrixMarketFuzzTest, DamagedTextIsRefusedOrWhole) {
  Damage damage(1);
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = damage.Apply(Seeds()[i % Seeds().size()]);
    SCOPED_TRACE(testing::Message() << "file " << i << ": " << testing::PrintToString(text));
    read += ExpectRefusedOrWhole(PutNew("a.mtx", text));
    if (HasFailure()) return;
  }
  // The damage reaches all depths of the reader.
  EXPECT_GT(read, 100);
  EXPECT_LT(read, 2000);
}

TEST_F(MatrixMarketFuzzTest, DamagedGzipIsRefusedOrWhole) {
  Damage damage(2);
  for (int i = 0; i < 1000; ++i) {
    const std::string& seed = Seeds()[i % Seeds().size()];
    // Damage before or after it was compressed.
    const std::string zip = i % 2 == 0 ? Gzip(damage.Apply(seed)) : damage.Apply(Gzip(seed));
    SCOPED_TRACE(testing::Message() << "file " << i);
    ExpectRefusedOrWhole(PutNew("a.mtx.gz", zip));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace intrawarp::io
