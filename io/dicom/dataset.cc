// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/dataset.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcfilefo.h>
#include <dcmtk/dcmdata/dcistrma.h>
#include <dcmtk/dcmdata/dcmetinf.h>
#include <dcmtk/dcmdata/dcvr.h>
#include <dcmtk/dcmdata/dcxfer.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/dicom/toolkit.h"
#include "io/file.h"

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kPreamble = 128;
constexpr size_t kSmallestFile = 16;
constexpr size_t kInflateStep = 1 << 20;
constexpr uint32_t kMaxCodeString = 16;  // PS3.5, VR CS

enum class Excess { kNone, kNesting, kElements, kLength, kRecordType };

// The bytes of a file for DCMTK's parser, which calls Read from within its recursion.
class BoundedProducer : public DcmProducer {
 public:
  // `big_endian_from`: where numbers begin to be big endian.
  BoundedProducer(const uint8_t* data, size_t size, size_t big_endian_from)
      : data_(data),
        size_(static_cast<offile_off_t>(size)),
        big_endian_from_(static_cast<offile_off_t>(big_endian_from)),
        base_(__builtin_frame_address(0)) {}

  Excess excess() const { return excess_; }

  OFBool good() const override { return excess_ == Excess::kNone; }
  OFCondition status() const override { return good() ? EC_Normal : EC_MemoryExhausted; }
  OFBool eos() override { return !good() || position_ == size_; }
  offile_off_t avail() override { return good() ? size_ - position_ : 0; }
  offile_off_t read(void* buffer, offile_off_t count) override {
    Account();
    const offile_off_t step = std::clamp<offile_off_t>(count, 0, avail());
    std::memcpy(buffer, data_ + position_, static_cast<size_t>(step));
    position_ += step;
    CheckLength(count);
    return step;
  }
  offile_off_t skip(offile_off_t count) override {
    Account();
    const offile_off_t step = std::clamp<offile_off_t>(count, 0, avail());
    position_ += step;
    return step;
  }
  void putback(offile_off_t count) override { position_ -= std::min(count, position_); }

 private:
  void Account() {
    const char* here = static_cast<const char*>(__builtin_frame_address(0));
    if (static_cast<size_t>(std::abs(here - static_cast<const char*>(base_))) > kMaxParserStack) {
      excess_ = Excess::kNesting;
    } else if (++reads_ > kMaxParserReads) {
      excess_ = Excess::kElements;
    }
  }

  // DCMTK takes as much memory for a value as its length says, however little is left. Lengths are four bytes after the
  // two halves of a tag, or after a VR of the long form and two reserved bytes, each read by itself.
  void CheckLength(offile_off_t count) {
    if (count == 2) {
      if (++halves_ >= 2) CheckRecordType();
      return;
    }
    const bool follows_halves = std::exchange(halves_, 0) >= 2;
    if (count != 4 || !follows_halves || position_ < 8) return;
    const uint8_t* const field = data_ + position_ - 8;  // the tag, or a VR and what follows it
    if (IsShortHeader(field)) return;
    const bool is_big = position_ > big_endian_from_;
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | field[is_big ? 4 + i : 7 - i];
    if (length != DCM_UndefinedLength && length > avail()) excess_ = Excess::kLength;
  }

  // After a tag. DCMTK throws, and loses what it was reading, where the type of a directory record is longer than a
  // code string may be.
  void CheckRecordType() {
    if (position_ < 4 || avail() < 4) return;
    const bool is_big = position_ > big_endian_from_;
    const uint8_t* const field = data_ + position_;  // the VR and its length, or the length
    if (std::memcmp(field - 4, is_big ? "\0\4\x14\x30" : "\4\0\x30\x14", 4) != 0) return;
    const bool is_explicit = field[0] == 'C' && field[1] == 'S';
    uint32_t length = 0;
    for (int i = is_explicit ? 2 : 0; i < 4; ++i) {
      length = length << 8 | field[is_big ? i : is_explicit ? 5 - i : 3 - i];
    }
    if (length > kMaxCodeString) excess_ = Excess::kRecordType;
  }

  // A VR, perhaps an unknown one, and a length in two bytes that says 4: what follows is the value.
  static bool IsShortHeader(const uint8_t* field) {
    const bool is_four = (field[2] == 4 && field[3] == 0) || (field[2] == 0 && field[3] == 4);
    const char name[] = {static_cast<char>(field[0]), static_cast<char>(field[1]), '\0'};
    const DcmVR vr(name);
    return is_four && !(vr.isStandard() && vr.usesExtendedLengthEncoding());
  }

  const uint8_t* const data_;
  const offile_off_t size_;
  const offile_off_t big_endian_from_;
  const void* const base_;
  int halves_ = 0;  // how many of the last reads were of two bytes
  offile_off_t position_ = 0;
  int64_t reads_ = 0;
  Excess excess_ = Excess::kNone;
};

// A stream that cannot be made anew, so that DCMTK reads every value at once.
class BoundedStream : public DcmInputStream {
 public:
  explicit BoundedStream(BoundedProducer* producer) : DcmInputStream(producer) {}
  DcmInputStreamFactory* newFactory() const override { return nullptr; }
};

bool HasPrefix(const std::vector<uint8_t>& bytes) {
  return bytes.size() >= kPreamble + 4 && std::memcmp(bytes.data() + kPreamble, "DICM", 4) == 0;
}

// A data set without its preamble begins with group 2 or 8 and a short first element.
bool LooksLikeDataset(const std::vector<uint8_t>& bytes) {
  if (bytes.size() < kSmallestFile) return false;
  const uint8_t* b = bytes.data();
  const bool little = (b[0] == 2 || b[0] == 8) && b[1] == 0 && b[3] == 0;
  const bool big = b[0] == 0 && (b[1] == 2 || b[1] == 8) && b[2] == 0;
  const bool explicit_vr = b[4] >= 'A' && b[4] <= 'Z' && b[5] >= 'A' && b[5] <= 'Z';
  const bool short_implicit = little && b[5] == 0 && b[6] == 0 && b[7] == 0;
  return (little || big) && (explicit_vr || short_implicit);
}

// Appends bytes of the file until there are `count` of them or the file ends.
absl::Status ReadUpTo(int descriptor, size_t count, std::vector<uint8_t>* bytes) {
  size_t done = bytes->size();
  bytes->resize(count);
  while (done < count) {
    const ssize_t got = read(descriptor, bytes->data() + done, count - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes->resize(done);
  return absl::OkStatus();
}

// Empty for a file that does not begin like DICOM, which is not read further, whatever its size.
absl::StatusOr<std::vector<uint8_t>> ReadFrom(const RegularFile& file, int64_t max_bytes) {
  std::vector<uint8_t> bytes;
  INTRAWARP_RETURN_IF_ERROR(ReadUpTo(file.descriptor, std::min<int64_t>(file.bytes, kPreamble + 4), &bytes));
  if (!HasPrefix(bytes) && !LooksLikeDataset(bytes)) return std::vector<uint8_t>();
  if (file.bytes > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("file: has ", file.bytes, " bytes, at most ", max_bytes));
  }
  INTRAWARP_RETURN_IF_ERROR(ReadUpTo(file.descriptor, static_cast<size_t>(file.bytes), &bytes));
  return bytes;
}

absl::StatusOr<std::shared_ptr<const void>> TakeRoom(const DicomLimits& limits, int64_t bytes) {
  if (!limits.room) return nullptr;
  return limits.room(bytes);
}

struct FileBytes {
  std::shared_ptr<const void> room;
  std::vector<uint8_t> bytes;
};

absl::StatusOr<FileBytes> ReadWithRoom(const RegularFile& file, const DicomLimits& limits) {
  FileBytes read;
  // For the file and the values that are parsed from it. A larger one is refused.
  if (file.bytes <= limits.max_file_bytes) {
    INTRAWARP_ASSIGN_OR_RETURN(read.room, TakeRoom(limits, 2 * file.bytes));
  }
  INTRAWARP_ASSIGN_OR_RETURN(read.bytes, ReadFrom(file, limits.max_file_bytes));
  return read;
}

absl::StatusOr<FileBytes> ReadBytes(const std::string& path, const DicomLimits& limits) {
  INTRAWARP_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
  absl::StatusOr<FileBytes> read = ReadWithRoom(file, limits);
  close(file.descriptor);
  return read;
}

absl::Status OutcomeOf(const OFCondition& condition, const BoundedProducer& producer) {
  switch (producer.excess()) {
    case Excess::kNesting:
      return absl::ResourceExhaustedError("nesting: sequences are nested too deeply");
    case Excess::kElements:
      return absl::ResourceExhaustedError("elements: the data set has too many");
    case Excess::kLength:
      return absl::DataLossError("data: the file ends inside an element");
    case Excess::kRecordType:
      return absl::DataLossError("data: the type of a directory record is too long");
    case Excess::kNone:
      break;
  }
  if (condition.good() || condition == EC_EndOfStream) return absl::OkStatus();
  if (condition == EC_StreamNotifyClient || condition == EC_InvalidStream) {
    return absl::DataLossError("data: the file ends inside an element");
  }
  return absl::DataLossError("data: the file is not well-formed DICOM");
}

// Raw deflate, as DICOM's PS3.5 A.5 has it: the number of bytes, at most `max_bytes`. They go to `out`, which has
// kInflateStep bytes more than there are, or to nowhere where it is null.
absl::StatusOr<int64_t> Inflate(const uint8_t* data, size_t size, int64_t max_bytes, uint8_t* out) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::ResourceExhaustedError("data: no memory to inflate");
  std::vector<uint8_t> nowhere(out == nullptr ? kInflateStep : 0);
  int result = Z_OK;
  size_t taken = 0;
  int64_t made = 0;
  while (result == Z_OK && made <= max_bytes) {
    if (stream.avail_in == 0) {
      stream.next_in = const_cast<uint8_t*>(data + taken);
      stream.avail_in = static_cast<uInt>(std::min<size_t>(size - taken, 1U << 30));
      taken += stream.avail_in;
    }
    stream.next_out = out == nullptr ? nowhere.data() : out + made;
    stream.avail_out = kInflateStep;
    result = inflate(&stream, Z_NO_FLUSH);
    made += static_cast<int64_t>(kInflateStep - stream.avail_out);
  }
  inflateEnd(&stream);
  if (result == Z_STREAM_END && made <= max_bytes) return made;
  if (result == Z_OK || result == Z_STREAM_END) {
    return absl::ResourceExhaustedError(absl::StrCat("file: inflates to more than ", max_bytes, " bytes"));
  }
  return absl::DataLossError("data: the deflated data set is cut short or corrupt");
}

// How a data set is stored, by the header of its file.
struct Layout {
  // Where a deflated data set begins; 0 for other files.
  size_t deflated_from = 0;
  // Where numbers begin to be big endian; the size of the file when none are.
  size_t big_endian_from = 0;
};

// DCMTK throws where it shortens a code string that is too long in a directory record (DcmByteString::verify).
template <typename Object>
OFCondition Read(Object& object, BoundedStream& stream, E_TransferSyntax syntax, Uint32 max_bytes) {
  try {
    return object.read(stream, syntax, EGL_noChange, max_bytes);
  } catch (const std::exception&) {
    return EC_CorruptedData;
  }
}

Layout LayoutOf(const std::vector<uint8_t>& bytes) {
  Layout layout{0, bytes.size()};
  if (!HasPrefix(bytes) && bytes[0] != 2) {
    if (bytes[0] == 0) layout.big_endian_from = 0;
    return layout;
  }
  auto* producer = new BoundedProducer(bytes.data(), bytes.size(), bytes.size());
  const std::unique_ptr<BoundedProducer> owner(producer);
  BoundedStream stream(producer);
  DcmMetaInfo meta;
  meta.transferInit();
  const OFCondition condition = Read(meta, stream, EXS_Unknown, DCM_MaxReadLength);
  meta.transferEnd();
  OFString uid;
  if (condition.bad() || meta.findAndGetOFString(DCM_TransferSyntaxUID, uid).bad()) return layout;
  const DcmXfer syntax(uid.c_str());
  const auto data_set = static_cast<size_t>(stream.tell());
  if (HasPrefix(bytes) && syntax.getXfer() == EXS_DeflatedLittleEndianExplicit) layout.deflated_from = data_set;
  if (syntax.getByteOrder() == EBO_BigEndian) layout.big_endian_from = data_set;
  return layout;
}

Dataset ParseDataset(const std::vector<uint8_t>& bytes) {
  BoundedProducer producer(bytes.data(), bytes.size(), bytes.size());
  BoundedStream stream(&producer);
  Dataset result;
  result.data.reset(new DcmDataset);
  result.data->transferInit();
  const OFCondition condition = Read(*result.data, stream, EXS_LittleEndianExplicit, static_cast<Uint32>(-1));
  result.data->transferEnd();
  result.status = OutcomeOf(condition, producer);
  return result;
}

Dataset ParseFile(const std::vector<uint8_t>& bytes, size_t big_endian_from) {
  BoundedProducer producer(bytes.data(), bytes.size(), big_endian_from);
  BoundedStream stream(&producer);
  DcmFileFormat file;
  file.transferInit();
  const OFCondition condition = Read(file, stream, EXS_Unknown, static_cast<Uint32>(-1));
  file.transferEnd();
  // DCMTK guesses where it does not know the transfer syntax.
  OFString syntax;
  const bool is_named = file.getMetaInfo()->findAndGetOFString(DCM_TransferSyntaxUID, syntax).good() && !syntax.empty();
  const bool is_known = !is_named || DcmXfer(syntax.c_str()).getXfer() != EXS_Unknown;
  Dataset result;
  result.data.reset(file.getAndRemoveDataset());
  result.status = OutcomeOf(condition, producer);
  if (result.status.ok() && !is_known) result.status = absl::UnimplementedError("transfer_syntax: is not known");
  return result;
}

absl::StatusOr<Dataset> ReadDeflated(const std::vector<uint8_t>& file, size_t offset, const DicomLimits& limits) {
  const uint8_t* const data = file.data() + offset;
  const size_t size = file.size() - offset;
  const absl::StatusOr<int64_t> bytes = Inflate(data, size, limits.max_file_bytes, nullptr);
  if (!bytes.ok()) {
    Dataset broken;
    broken.data.reset(new DcmDataset);
    broken.status = bytes.status();
    return broken;
  }
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const void> room, TakeRoom(limits, 2 * *bytes));
  std::vector<uint8_t> inflated(static_cast<size_t>(*bytes) + kInflateStep);
  INTRAWARP_RETURN_IF_ERROR(Inflate(data, size, *bytes, inflated.data()).status());
  inflated.resize(static_cast<size_t>(*bytes));
  Dataset dataset = ParseDataset(inflated);
  dataset.room = std::move(room);
  return dataset;
}

}  // namespace

void DatasetDeleter::operator()(DcmDataset* dataset) const { delete dataset; }

bool BeginsLikeDicom(const std::string& path) {
  const absl::StatusOr<RegularFile> file = OpenRegularFile(path);
  if (!file.ok()) return false;
  std::vector<uint8_t> bytes;
  const absl::Status status = ReadUpTo(file->descriptor, std::min<int64_t>(file->bytes, kPreamble + 4), &bytes);
  close(file->descriptor);
  return status.ok() && (HasPrefix(bytes) || LooksLikeDataset(bytes));
}

absl::StatusOr<Dataset> ReadDataset(const std::string& path, const DicomLimits& limits) {
  INTRAWARP_RETURN_IF_ERROR(StartToolkit());
  INTRAWARP_ASSIGN_OR_RETURN(FileBytes file, ReadBytes(path, limits));
  if (file.bytes.empty()) return Dataset{nullptr, nullptr, absl::NotFoundError("file: is not DICOM")};
  const Layout layout = LayoutOf(file.bytes);
  if (layout.deflated_from != 0) return ReadDeflated(file.bytes, layout.deflated_from, limits);
  Dataset dataset = ParseFile(file.bytes, layout.big_endian_from);
  dataset.room = std::move(file.room);
  return dataset;
}

}  // namespace intrawarp::io::dicom
