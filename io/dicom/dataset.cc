// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/dataset.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcfilefo.h>
#include <dcmtk/dcmdata/dcistrma.h>
#include <dcmtk/dcmdata/dcmetinf.h>
#include <dcmtk/dcmdata/dcxfer.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/memory_guard.h"
#include "engine/base/status_macros.h"
#include "io/dicom/toolkit.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kPreamble = 128;
constexpr size_t kSmallestFile = 16;
constexpr size_t kInflateStep = 1 << 20;
constexpr uint32_t kMaxCodeString = 16;  // PS3.5, VR CS

enum class Excess { kNone, kNesting, kElements, kLength, kRecordType, kByteOrder };

// The syntax that DCMTK reads by: named, or guessed by itself.
struct Source {
  const DcmMetaInfo* meta = nullptr;
  const DcmDataset* data_set = nullptr;

  bool IsBigEndian() const {
    E_TransferSyntax syntax = data_set == nullptr ? EXS_Unknown : data_set->getOriginalXfer();
    if (syntax == EXS_Unknown && meta != nullptr) syntax = meta->getOriginalXfer();
    return DcmXfer(syntax).getByteOrder() == EBO_BigEndian;
  }
};

// The bytes of a file for DCMTK's parser, which calls Read from within its recursion.
class BoundedProducer : public DcmProducer {
 public:
  BoundedProducer(const uint8_t* data, size_t size, const Source& source)
      : data_(data), size_(static_cast<offile_off_t>(size)), source_(source), base_(__builtin_frame_address(0)) {}

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
    last_read_ = count;
    return step;
  }
  offile_off_t skip(offile_off_t count) override {
    Account();
    const offile_off_t step = std::clamp<offile_off_t>(count, 0, avail());
    position_ += step;
    return step;
  }
  void putback(offile_off_t count) override { position_ -= std::min(count, position_); }

  void BeginHeader() { header_at_ = position_; }

  // DCMTK takes as much memory for a value as its length says, however little is left. The header of an element or item
  // is a tag of two reads, perhaps a VR and two reserved bytes, and a length of two or four bytes in a read of its own.
  void EndHeader() {
    const offile_off_t header = position_ - std::exchange(header_at_, size_);
    if (!good() || header < 8 || header > kLongestHeader || (last_read_ != 2 && last_read_ != 4)) return;
    const bool is_big = source_.IsBigEndian();
    const uint32_t length = Number(position_ - last_read_, last_read_, is_big);
    const uint8_t* const tag = data_ + position_ - header;
    const bool is_undefined = length == DCM_UndefinedLength;
    if (!is_undefined && length > avail()) {
      excess_ = Excess::kLength;
    } else if (std::memcmp(tag, is_big ? "\0\4\x14\x30" : "\4\0\x30\x14", 4) == 0 && length > kMaxCodeString) {
      // DCMTK throws, and loses what it was reading, where the type of a directory record is longer than a code string
      // may be.
      excess_ = Excess::kRecordType;
    } else if (is_big && is_undefined && !KeepsByteOrder(tag, header)) {
      excess_ = Excess::kByteOrder;
    }
  }

 private:
  static constexpr offile_off_t kLongestHeader = 12;

  void Account() {
    const char* here = static_cast<const char*>(__builtin_frame_address(0));
    if (static_cast<size_t>(std::abs(here - static_cast<const char*>(base_))) > kMaxParserStack) {
      excess_ = Excess::kNesting;
    } else if (++reads_ > kMaxParserReads) {
      excess_ = Excess::kElements;
    }
  }

  uint32_t Number(offile_off_t at, offile_off_t count, bool is_big) const {
    uint32_t number = 0;
    for (offile_off_t i = 0; i < count; ++i) number = number << 8 | data_[is_big ? at + i : at + count - 1 - i];
    return number;
  }

  // For an undefined length in a big endian data set. DCMTK reads a sequence of another VR as little endian (CP-246).
  static bool KeepsByteOrder(const uint8_t* tag, offile_off_t header) {
    if (header < kLongestHeader) return std::memcmp(tag, "\xff\xfe\xe0\0", 4) == 0;  // an item
    const uint8_t* const vr = tag + 4;
    return std::memcmp(vr, "SQ", 2) == 0 || std::memcmp(vr, "OB", 2) == 0 || std::memcmp(vr, "OW", 2) == 0;
  }

  const uint8_t* const data_;
  const offile_off_t size_;
  const Source source_;
  const void* const base_;
  offile_off_t position_ = 0;
  offile_off_t header_at_ = size_;  // where the header that is being read begins
  offile_off_t last_read_ = 0;
  int64_t reads_ = 0;
  Excess excess_ = Excess::kNone;
};

// A stream that cannot be made anew, so that DCMTK reads every value at once. DCMTK marks the place before it reads a
// header (readTagAndLength), and asks for the status before it reads what follows, or takes memory for it.
class BoundedStream : public DcmInputStream {
 public:
  explicit BoundedStream(BoundedProducer* producer) : DcmInputStream(producer), producer_(producer) {}
  DcmInputStreamFactory* newFactory() const override { return nullptr; }
  // A filter would hide the lengths, and has no bounds (Inflate has).
  OFCondition installCompressionFilter(E_StreamCompression /*filter*/) override { return EC_UnsupportedEncoding; }
  void mark() override {
    DcmInputStream::mark();
    producer_->BeginHeader();
  }
  OFCondition status() const override {
    producer_->EndHeader();
    return DcmInputStream::status();
  }

 private:
  BoundedProducer* const producer_;
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
    return FieldError(absl::StatusCode::kResourceExhausted, "file",
                      absl::StrCat("has ", file.bytes, " bytes, at most ", max_bytes));
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
      return FieldError(absl::StatusCode::kResourceExhausted, "nesting", "sequences are nested too deeply");
    case Excess::kElements:
      return FieldError(absl::StatusCode::kResourceExhausted, "elements", "the data set has too many");
    case Excess::kLength:
      return FieldError(absl::StatusCode::kDataLoss, "data", "the file ends inside an element");
    case Excess::kRecordType:
      return FieldError(absl::StatusCode::kDataLoss, "data", "the type of a directory record is too long");
    case Excess::kByteOrder:
      return FieldError(absl::StatusCode::kUnimplemented, "transfer_syntax",
                        "big endian, with a sequence of unknown VR");
    case Excess::kNone:
      break;
  }
  if (condition == EC_UnsupportedEncoding) {  // of the stream; what is deflated in DICOM's own way is inflated before
    return FieldError(absl::StatusCode::kUnimplemented, "transfer_syntax",
                      "compressed as a whole, other than Deflated Explicit VR");
  }
  if (condition == EC_MemoryExhausted) return OutOfMemory();
  if (condition.good() || condition == EC_EndOfStream) return absl::OkStatus();
  if (condition == EC_StreamNotifyClient || condition == EC_InvalidStream) {
    return FieldError(absl::StatusCode::kDataLoss, "data", "the file ends inside an element");
  }
  return FieldError(absl::StatusCode::kDataLoss, "data", "the file is not well-formed DICOM");
}

// Raw deflate, as DICOM's PS3.5 A.5 has it: the number of bytes, at most `max_bytes`. They go to `out`, which has
// kInflateStep bytes more than there are, or to nowhere where it is null.
absl::StatusOr<int64_t> Inflate(const uint8_t* data, size_t size, int64_t max_bytes, uint8_t* out) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) {
    return FieldError(absl::StatusCode::kResourceExhausted, "data", "no memory to inflate");
  }
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
    return FieldError(absl::StatusCode::kResourceExhausted, "file",
                      absl::StrCat("inflates to more than ", max_bytes, " bytes, the limit for its size"));
  }
  return FieldError(absl::StatusCode::kDataLoss, "data", "the deflated data set is cut short or corrupt");
}

// DCMTK throws where it shortens a code string that is too long in a directory record (DcmByteString::verify).
template <typename Object>
OFCondition Read(Object& object, BoundedStream& stream, E_TransferSyntax syntax, Uint32 max_bytes) {
  try {
    return object.read(stream, syntax, EGL_noChange, max_bytes);
  } catch (const std::bad_alloc&) {
    return EC_MemoryExhausted;
  } catch (const std::exception&) {
    return EC_CorruptedData;
  }
}

// Where a deflated data set begins; 0 for other files.
size_t DeflatedFrom(const std::vector<uint8_t>& bytes) {
  DcmMetaInfo meta;
  BoundedProducer producer(bytes.data(), bytes.size(), {&meta, nullptr});
  BoundedStream stream(&producer);
  meta.transferInit();
  const OFCondition condition = Read(meta, stream, EXS_Unknown, DCM_MaxReadLength);
  meta.transferEnd();
  OFString uid;
  if (condition.bad() || !producer.good() || meta.findAndGetOFString(DCM_TransferSyntaxUID, uid).bad()) return 0;
  const bool is_deflated = DcmXfer(uid.c_str()).getXfer() == EXS_DeflatedLittleEndianExplicit;
  return is_deflated ? static_cast<size_t>(stream.tell()) : 0;
}

Dataset ParseDataset(const std::vector<uint8_t>& bytes) {
  Dataset result;
  result.data.reset(new DcmDataset);
  BoundedProducer producer(bytes.data(), bytes.size(), {nullptr, result.data.get()});
  BoundedStream stream(&producer);
  result.data->transferInit();
  const OFCondition condition = Read(*result.data, stream, EXS_LittleEndianExplicit, static_cast<Uint32>(-1));
  result.data->transferEnd();
  result.status = OutcomeOf(condition, producer);
  return result;
}

Dataset ParseFile(const std::vector<uint8_t>& bytes) {
  DcmFileFormat file;
  BoundedProducer producer(bytes.data(), bytes.size(), {file.getMetaInfo(), file.getDataset()});
  BoundedStream stream(&producer);
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
  if (result.status.ok() && !is_known) {
    result.status = FieldError(absl::StatusCode::kUnimplemented, "transfer_syntax", "is not known");
  }
  return result;
}

absl::StatusOr<Dataset> ReadDeflated(const std::vector<uint8_t>& file, size_t offset, const DicomLimits& limits) {
  const uint8_t* const data = file.data() + offset;
  const size_t size = file.size() - offset;
  // A small file must not stand for as much as its sender likes.
  const auto packed = static_cast<int64_t>(size);
  const int64_t most = std::min(limits.max_file_bytes, limits.max_inflated_bytes + limits.max_inflation * packed);
  const absl::StatusOr<int64_t> bytes = Inflate(data, size, most, nullptr);
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

absl::StatusOr<Dataset> ReadUnguarded(const std::string& path, const DicomLimits& limits) {
  INTRAWARP_ASSIGN_OR_RETURN(FileBytes file, ReadBytes(path, limits));
  if (file.bytes.empty()) {
    return Dataset{nullptr, nullptr, FieldError(absl::StatusCode::kNotFound, "file", "is not DICOM")};
  }
  const size_t deflated_from = DeflatedFrom(file.bytes);
  if (deflated_from != 0) return ReadDeflated(file.bytes, deflated_from, limits);
  Dataset dataset = ParseFile(file.bytes);
  dataset.room = std::move(file.room);
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
  absl::StatusOr<Dataset> dataset = GuardMemory([&] { return ReadUnguarded(path, limits); });
  // Memory is not a fault of the file's.
  if (dataset.ok() && dataset->status == OutOfMemory()) return dataset->status;
  return dataset;
}

}  // namespace intrawarp::io::dicom
