// SPDX-License-Identifier: Apache-2.0
// Files that are cut short, or whose lengths and nesting lie.
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <string>

#include "io/dicom/dicom.h"
#include "tests/io/dicom/dicom_fixture.h"

namespace intrawarp::io {
namespace {

// ---- Hostile files --------------------------------------------------------------------------------------------------

TEST_F(DicomTest, TruncatedAnywhereIsRefused) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  std::filesystem::remove(Path("whole"));
  for (size_t length = 0; length < bytes.size(); length += length < 900 ? 1 : 17) {
    const absl::StatusOr<DicomVolume> v = ReadDicom(Put("part", bytes.substr(0, length)));
    EXPECT_FALSE(v.ok()) << length;
  }
}

// An element of explicit VR, little endian, with a long length.
std::string LongElement(uint16_t group, uint16_t element, const std::string& vr, uint32_t length) {
  std::string bytes(12, '\0');
  std::memcpy(bytes.data(), &group, 2);
  std::memcpy(bytes.data() + 2, &element, 2);
  std::memcpy(bytes.data() + 4, vr.data(), 2);
  std::memcpy(bytes.data() + 8, &length, 4);
  return bytes;
}

// The most bytes that were ever resident.
int64_t PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST_F(DicomTest, HostileLengthsTakeNoMemory) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  const size_t at = bytes.find(std::string("\xe0\x7f\x10\0OW", 6));
  ASSERT_NE(at, std::string::npos);
  const int64_t before = PeakMemory();
  for (const uint32_t length : {0x7ffffffeU, 0xfffffff0U, 0xffffffffU}) {
    const std::string hostile = bytes.substr(0, at) + LongElement(0x7fe0, 0x0010, "OW", length) + bytes.substr(at + 12);
    EXPECT_FALSE(ReadDicom(Put("hostile", hostile)).ok()) << length;
    const std::string early = bytes.substr(0, at) + LongElement(0x7001, 0x0010, "OB", length) + bytes.substr(at);
    EXPECT_FALSE(ReadDicom(Put("hostile", early)).ok()) << length;
  }
  for (const auto& [rows, frames] : {std::pair(65535, "16777216"), {65535, "1"}}) {
    const auto slice = Enhanced(maker_, {0}, false);
    slice->getDataset()->findAndDeleteElement(DCM_PerFrameFunctionalGroupsSequence);
    slice->getDataset()->putAndInsertUint16(DCM_Rows, static_cast<Uint16>(rows));
    slice->getDataset()->putAndInsertUint16(DCM_Columns, 65535);
    slice->getDataset()->putAndInsertString(DCM_NumberOfFrames, frames);
    EXPECT_FALSE(ReadDicom(maker_.Save(*slice, "hostile")).ok());
  }
  EXPECT_LT(PeakMemory() - before, 200 << 20);
}

// The most address space that the process ever had.
int64_t PeakAddressSpace() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPeak:", 0) == 0) return std::stoll(line.substr(7)) * 1024;
  }
  return 0;
}

// The four of `bytes` at `at` become a length that the file has no room for.
void ExpectLengthRefused(const std::string& path, std::string bytes, size_t at, bool is_big) {
  for (const uint32_t length : {0xff000054U, 0x7ffffff0U, 0x40000000U}) {
    const int64_t before = PeakAddressSpace();
    ASSERT_GT(before, 0);
    for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(length >> 8 * (is_big ? 3 - i : i));
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_THAT(ReadDicom(path), Fails(Code::kDataLoss, "data: the file ends inside an element"));
    EXPECT_LT(PeakAddressSpace() - before, int64_t{200} << 20) << length;
  }
}

TEST_F(DicomTest, AFragmentLongerThanItsFileTakesNoMemory) {
  const std::vector<uint8_t> fragment(16, 7);
  const std::string path = maker_.SaveEncapsulated(*maker_.Slice({}), "one", EXS_RLELossless, {fragment});
  const std::string bytes = Get(path);
  const size_t at = bytes.find(std::string("\xfe\xff\x00\xe0\x10\0\0\0", 8));
  ASSERT_NE(at, std::string::npos);
  ExpectLengthRefused(path, bytes, at + 4, /*is_big=*/false);
}

TEST_F(DicomTest, AValueLongerThanItsFileTakesNoMemory) {
  struct Case {
    E_TransferSyntax syntax;
    std::string pixels;  // tag, and VR
    bool is_big;
  };
  for (const auto& [syntax, pixels, is_big] :
       {Case{EXS_LittleEndianExplicit, std::string("\xe0\x7f\x10\0OW\0\0", 8), false},
        Case{EXS_LittleEndianImplicit, std::string("\xe0\x7f\x10\0", 4), false},
        Case{EXS_BigEndianExplicit, std::string("\x7f\xe0\0\x10OW\0\0", 8), true}}) {
    const std::string path = maker_.Save(*maker_.Slice({}), "one", syntax);
    EXPECT_TRUE(ReadDicom(path).ok());
    const std::string bytes = Get(path);
    const size_t at = bytes.find(pixels);
    ASSERT_NE(at, std::string::npos);
    ExpectLengthRefused(path, bytes, at + pixels.size(), is_big);
  }
}

// 0xfe000000 in one byte order, and 254 in the other.
constexpr char kFarLength[] = "\0\0\0\xfe";
constexpr char kFarLengthBig[] = "\xfe\0\0\0";

void ExpectNoMemory(const std::string& path, const testing::Matcher<absl::StatusOr<DicomVolume>>& outcome) {
  const int64_t before = PeakAddressSpace();
  ASSERT_GT(before, 0);
  EXPECT_THAT(ReadDicom(path), outcome);
  EXPECT_LT(PeakAddressSpace() - before, int64_t{200} << 20);
}

std::string Bytes(const char* bytes, size_t size) { return {bytes, size}; }

// Without the preamble: the element of the group's length, and what it counts.
std::string MetaHeader(const std::string& file) {
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 140, 4);
  return file.substr(132, 12 + length);
}

TEST_F(DicomTest, ATagThatReadsLikeAShortLengthIsATag) {
  // A group length, and an implicit element (0000,0400) or (0000,0004).
  for (const char* tag : {"\0\0\0\4", "\0\0\4\0"}) {
    const std::string bytes =
        Bytes("\2\0\0\0\0\0\0\0", 8) + Bytes(tag, 4) + Bytes(kFarLength, 4) + std::string(20, 'x');
    ExpectNoMemory(Put("hostile", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
  }
}

TEST_F(DicomTest, AnUnknownVrHasALongLength) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "one"));
  std::string element = LongElement(0x0009, 0x1010, "ZZ", 0xfe000000);
  element[6] = 4;  // reserved
  ExpectNoMemory(Put("one", bytes + element + std::string(20, 'x')),
                 Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AGuessedByteOrderIsThatOfLengths) {
  std::string bytes = Get(maker_.Save(*maker_.Slice({.rows = 40}), "one", EXS_BigEndianExplicit));
  const std::string uid = "1.2.840.10008.1.2.2";
  const size_t at = bytes.find(uid), pixels = bytes.find(Bytes("\x7f\xe0\0\x10OW\0\0", 8));
  ASSERT_NE(at, std::string::npos);
  ASSERT_NE(pixels, std::string::npos);
  bytes[at + uid.size() - 1] = '9';
  EXPECT_THAT(ReadDicom(Put("one", bytes)), Fails(Code::kUnimplemented, "transfer_syntax: is not known"));
  bytes.replace(pixels + 8, 4, kFarLengthBig, 4);
  ExpectNoMemory(Put("one", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AMetaHeaderMayBeBigEndian) {
  const std::string bytes =
      std::string(128, '\0') + "DICM" + Bytes("\0\2\0\1OB\0\0", 8) + Bytes(kFarLengthBig, 4) + std::string(300, '\0');
  ExpectNoMemory(Put("hostile", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AnUnknownSequenceInABigEndianDataSetIsRefused) {
  // Its items are little endian (CP-246).
  const std::string bytes = Get(maker_.Save(*maker_.Slice({.rows = 40}), "one", EXS_BigEndianExplicit));
  const size_t pixels = bytes.find(Bytes("\x7f\xe0\0\x10OW\0\0", 8));
  ASSERT_NE(pixels, std::string::npos);
  const std::string item = Bytes("\xfe\xff\0\xe0\xff\xff\xff\xff\x08\0\x60\0", 12) + Bytes(kFarLength, 4);
  for (const char* tag : {"\x70\1\0\x10", "\xff\xfe\xe0\1"}) {
    std::string hostile = bytes;
    hostile.insert(pixels, Bytes(tag, 4) + Bytes("UN\0\0\xff\xff\xff\xff", 8) + item);
    ExpectNoMemory(Put("one", hostile), Fails(Code::kUnimplemented, "transfer_syntax: big endian, with a sequence"));
  }
}

TEST_F(DicomTest, DcmtkInflatesNothing) {
  const auto slice = maker_.Slice({});
  const std::string deflated = Get(maker_.Save(*slice, "one", EXS_DeflatedLittleEndianExplicit));
  EXPECT_THAT(ReadDicom(Put("one", deflated.substr(132))), Succeeds());
  const std::string plain = Get(maker_.Save(*slice, "one"));
  const std::string data_set = plain.substr(132 + MetaHeader(plain).size()) +
                               LongElement(0x7fe1, 0x1010, "OB", 0xfe000000) + std::string(20, 'x');
  // One stored block.
  std::string block(5, '\1');
  for (size_t i = 0; i < 2; ++i) {
    block[1 + i] = static_cast<char>(data_set.size() >> 8 * i);
    block[3 + i] = static_cast<char>(~data_set.size() >> 8 * i);
  }
  std::string meta = MetaHeader(deflated);
  ExpectNoMemory(Put("one", meta + block + data_set + "x"),
                 Fails(Code::kDataLoss, "data: the file ends inside an element"));
  const size_t at = meta.find(UID_DeflatedExplicitVRLittleEndianTransferSyntax);
  ASSERT_NE(at, std::string::npos);
  const std::string jpip = UID_JPIPReferencedDeflateTransferSyntax;
  meta.replace(at, jpip.size(), jpip);
  ExpectNoMemory(Put("one", meta + block + data_set + "x"),
                 Fails(Code::kUnimplemented, "transfer_syntax: compressed as a whole"));
}

TEST_F(DicomTest, AnImplicitLengthThatReadsLikeAVrIsALength) {
  // An implicit directory record, whose type has 0x15343 bytes: "CS" and 1.
  const std::string item = Bytes("\4\0\x20\x12\xff\xff\xff\xff\xfe\xff\0\xe0\xff\xff\xff\xff", 16);
  const std::string type = Bytes("\4\0\x30\x14\x43S\1\0", 8) + std::string(0x15343, 'A');
  const std::string bytes = Bytes("\x08\0\x05\0\0\0\0\0", 8) + item + type;
  EXPECT_THAT(ReadDicom(Put("hostile", bytes)),
              Fails(Code::kDataLoss, "data: the type of a directory record is too long"));
}

TEST_F(DicomTest, FourBytesOfAValueAreNoLength) {
  const auto slice = maker_.Slice({});
  DcmDataset& d = *slice->getDataset();
  d.putAndInsertUint16(DCM_RegionSpatialFormat, 1);
  d.putAndInsertUint32(DCM_SimpleFrameList, 0xfffffff0U);
  d.putAndInsertUint32(DCM_ReferencedContentItemIdentifier, 0x7fffffffU);
  for (const E_TransferSyntax syntax : {EXS_LittleEndianExplicit, EXS_LittleEndianImplicit, EXS_BigEndianExplicit}) {
    const absl::StatusOr<DicomVolume> v = ReadDicom(maker_.Save(*slice, "one", syntax));
    EXPECT_TRUE(v.ok()) << v.status();
  }
}

TEST_F(DicomTest, DeepNestingIsRefused) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  const size_t at = bytes.find(std::string("\xe0\x7f\x10\0OW", 6));
  std::string nest;
  for (int level = 0; level < 200000; ++level) {
    nest += LongElement(0x7001, 0x0010, "SQ", 0xffffffff) + std::string("\xfe\xff\x00\xe0\xff\xff\xff\xff", 8);
  }
  EXPECT_THAT(ReadDicom(Put("hostile", bytes.substr(0, at) + nest)), Fails(Code::kResourceExhausted, "nesting: "));
  // A few levels, as real files have them, are fine.
  std::string shallow, end;
  for (int level = 0; level < 12; ++level) {
    shallow += LongElement(0x7001, 0x0010, "SQ", 0xffffffff) + std::string("\xfe\xff\x00\xe0\xff\xff\xff\xff", 8);
    end += std::string("\xfe\xff\x0d\xe0\0\0\0\0\xfe\xff\xdd\xe0\0\0\0\0", 16);
  }
  EXPECT_THAT(ReadDicom(Put("fine", bytes.substr(0, at) + shallow + end + bytes.substr(at))), Succeeds());
}

TEST_F(DicomTest, ADeflatedBombIsRefused) {
  // A megabyte of zeros in a private element packs into a kilobyte.
  const auto slice = maker_.Slice({});
  const std::vector<Uint8> zeros(1 << 20);
  slice->getDataset()->putAndInsertUint8Array(DcmTag(0x7001, 0x0010, EVR_OB), zeros.data(), zeros.size());
  const std::string path = maker_.Save(*slice, "bomb", EXS_DeflatedLittleEndianExplicit);
  EXPECT_THAT(ReadDicom(path), Succeeds());
  EXPECT_THAT(ReadDicom(path, {.limits = {.max_file_bytes = 100000}}),
              Fails(Code::kResourceExhausted, "file: inflates to more than 100000 bytes"));
  EXPECT_THAT(ReadDicom(path, {.limits = {.max_inflated_bytes = 100000, .max_inflation = 10}}),
              Fails(Code::kResourceExhausted, "the limit for its size"));
  // The room that it expands to is asked for before it is there.
  std::vector<int64_t> asked;
  int64_t taken = 0;
  DicomOptions options;
  options.limits.room = [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<const void>> {
    asked.push_back(bytes);
    taken += bytes;
    if (taken > int64_t{2} << 20) return absl::ResourceExhaustedError("no room");
    return std::shared_ptr<const void>(&taken, [&taken, bytes](const void*) { taken -= bytes; });
  };
  EXPECT_THAT(ReadDicom(path, options), Fails(Code::kResourceExhausted, "no room"));
  ASSERT_EQ(asked.size(), 2);
  EXPECT_EQ(asked[0], 2 * static_cast<int64_t>(std::filesystem::file_size(path)));
  EXPECT_GT(asked[1], int64_t{2} << 20);
  EXPECT_EQ(taken, asked[1]);
  taken = -(int64_t{1} << 30);
  EXPECT_THAT(ReadDicom(path, options), Succeeds());
  EXPECT_EQ(taken, -(int64_t{1} << 30));
  const std::string bytes = Get(path);
  EXPECT_THAT(ReadDicom(Put("cut", bytes.substr(0, bytes.size() - 200))), Fails(Code::kDataLoss, "data: the deflated"));
}

}  // namespace
}  // namespace intrawarp::io
