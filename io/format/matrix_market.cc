// SPDX-License-Identifier: Apache-2.0
#include "io/format/matrix_market.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr size_t kMaxLine = 4096;
// The best ratio of deflate (zlib's technical details).
constexpr int64_t kMaxDeflateRatio = 1032;
constexpr int64_t kBytesPerEntry = 2 * sizeof(int32_t) + sizeof(double);

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}
absl::Status BadLine(int64_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

// The lines of a plain or gzipped file.
class LineReader {
 public:
  static absl::StatusOr<std::unique_ptr<LineReader>> Open(const std::string& path) {
    INTRAWARP_ASSIGN_OR_RETURN(const RegularFile regular, OpenRegularFile(path));
    gzFile file = gzdopen(regular.descriptor, "rb");
    if (file == nullptr) {
      close(regular.descriptor);
      return FieldError(absl::StatusCode::kResourceExhausted, "file", "no memory for zlib");
    }
    gzbuffer(file, 1 << 17);
    return std::unique_ptr<LineReader>(new LineReader(file, regular.bytes));
  }
  ~LineReader() { gzclose_r(file_); }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line, without its end, valid until the next call; false at the end of the file.
  absl::StatusOr<bool> Next(absl::string_view* line) {
    while (true) {
      const char* begin = buffer_.data() + begin_;
      if (const void* end = std::memchr(begin, '\n', end_ - begin_)) {
        *line = absl::string_view(begin, static_cast<const char*>(end) - begin);
        begin_ += line->size() + 1;
        break;
      }
      if (end_ - begin_ > kMaxLine) return BadLine(number_ + 1, "too long");
      INTRAWARP_ASSIGN_OR_RETURN(const bool more, Fill());
      if (more) continue;
      if (begin_ == end_) return false;
      *line = absl::string_view(buffer_.data() + begin_, end_ - begin_);
      begin_ = end_;
      break;
    }
    ++number_;
    if (line->size() > kMaxLine) return BadLine(number_, "too long");
    return true;
  }
  // The number of the last line that Next gave, from 1.
  int64_t number() const { return number_; }
  // The most text that can come out of the file.
  int64_t max_text() {
    if (gzdirect(file_)) return file_bytes_;
    return file_bytes_ > std::numeric_limits<int64_t>::max() / kMaxDeflateRatio ? std::numeric_limits<int64_t>::max()
                                                                                : file_bytes_ * kMaxDeflateRatio;
  }
  bool compressed() { return gzdirect(file_) == 0; }

 private:
  LineReader(gzFile file, int64_t file_bytes) : file_(file), file_bytes_(file_bytes), buffer_(kBufferBytes) {}

  absl::StatusOr<bool> Fill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    const int got = gzread(file_, buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
    int error = Z_OK;
    gzerror(file_, &error);
    if (got < 0 || error == Z_BUF_ERROR) {
      return error == Z_ERRNO
                 ? FileError("cannot be read", errno)
                 : FieldError(absl::StatusCode::kDataLoss, "data", "the compressed file is truncated or corrupt");
    }
    end_ += got;
    return got > 0;
  }

  gzFile file_;
  int64_t file_bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t number_ = 0;
};

// Takes the next word, between blanks, off the front; empty at the end.
absl::string_view TakeWord(absl::string_view& text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; };
  size_t begin = 0;
  while (begin < text.size() && blank(text[begin])) ++begin;
  size_t end = begin;
  while (end < text.size() && !blank(text[end])) ++end;
  const absl::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

template <typename T>
bool Parse(absl::string_view word, T* value) {
  const char* begin = word.data();
  const char* end = begin + word.size();
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') ++begin;
  const auto [rest, error] = std::from_chars(begin, end, *value);
  return begin != end && error == std::errc() && rest == end;
}

enum class Field { kReal, kInteger, kPattern };
enum class Symmetry { kGeneral, kSymmetric, kSkew };

struct Header {
  Field field = Field::kReal;
  Symmetry symmetry = Symmetry::kGeneral;
  int32_t rows = 0;
  int32_t columns = 0;
  int64_t entries = 0;  // lines
};

absl::Status ParseBanner(absl::string_view line, Header* header) {
  const std::string lower = absl::AsciiStrToLower(line);
  absl::string_view rest = lower;
  if (TakeWord(rest) != "%%matrixmarket") return Invalid("header", "does not begin with %%MatrixMarket");
  if (TakeWord(rest) != "matrix") return Invalid("header", "the object is not matrix");
  const absl::string_view format = TakeWord(rest), field = TakeWord(rest), symmetry = TakeWord(rest);
  if (format == "array") return FieldError(absl::StatusCode::kUnimplemented, "header", "array (dense) files");
  if (format != "coordinate") return Invalid("header", "the format is not coordinate");
  if (field == "complex") return FieldError(absl::StatusCode::kUnimplemented, "header", "complex values");
  if (symmetry == "hermitian") return FieldError(absl::StatusCode::kUnimplemented, "header", "hermitian matrices");
  if (field == "real" || field == "double") {
    header->field = Field::kReal;
  } else if (field == "integer") {
    header->field = Field::kInteger;
  } else if (field == "pattern") {
    header->field = Field::kPattern;
  } else {
    return Invalid("header", "the field is not real, integer or pattern");
  }
  if (symmetry == "general") {
    header->symmetry = Symmetry::kGeneral;
  } else if (symmetry == "symmetric") {
    header->symmetry = Symmetry::kSymmetric;
  } else if (symmetry == "skew-symmetric") {
    header->symmetry = Symmetry::kSkew;
  } else {
    return Invalid("header", "the symmetry is not general, symmetric or skew-symmetric");
  }
  if (!TakeWord(rest).empty()) return Invalid("header", "more than five words");
  return absl::OkStatus();
}

absl::Status ParseSize(absl::string_view line, Header* header) {
  int64_t size[3];
  for (int64_t& n : size) {
    if (!Parse(TakeWord(line), &n) || n < 0) return Invalid("size", "must be three numbers: rows, columns, entries");
  }
  if (!TakeWord(line).empty()) return Invalid("size", "must be three numbers: rows, columns, entries");
  constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();
  if (size[0] > kMaxIndex || size[1] > kMaxIndex) {
    return Invalid("size", absl::StrCat(size[0], "x", size[1], " has more than 2^31 - 1 rows or columns"));
  }
  header->rows = static_cast<int32_t>(size[0]);
  header->columns = static_cast<int32_t>(size[1]);
  header->entries = size[2];
  if (header->symmetry != Symmetry::kGeneral && size[0] != size[1]) {
    return Invalid("size", absl::StrCat(size[0], "x", size[1], " is not square, but the header says symmetric"));
  }
  if (header->entries > 0 && (size[0] == 0 || size[1] == 0)) return Invalid("size", "entries without rows or columns");
  return absl::OkStatus();
}

// The banner, the comments and the line of sizes.
absl::StatusOr<Header> ReadHeader(LineReader& reader) {
  Header header;
  absl::string_view line;
  INTRAWARP_ASSIGN_OR_RETURN(bool more, reader.Next(&line));
  if (!more) return Invalid("header", "the file is empty");
  INTRAWARP_RETURN_IF_ERROR(ParseBanner(line, &header));
  while (true) {
    INTRAWARP_ASSIGN_OR_RETURN(more, reader.Next(&line));
    if (!more) return Invalid("size", "missing");
    absl::string_view rest = line;
    const absl::string_view word = TakeWord(rest);
    if (word.empty() || word[0] == '%') continue;
    INTRAWARP_RETURN_IF_ERROR(ParseSize(line, &header));
    return header;
  }
}

absl::Status CheckMemory(const Header& header, LineReader& reader, int64_t max_bytes) {
  const int64_t row_bytes = (int64_t{header.rows} + 1) * sizeof(int64_t);
  const int64_t lines = header.symmetry == Symmetry::kGeneral ? 1 : 2;
  if (row_bytes > max_bytes || header.entries > (max_bytes - row_bytes) / kBytesPerEntry / lines) {
    return FieldError(absl::StatusCode::kResourceExhausted, "size",
                      absl::StrCat(header.rows, "x", header.columns, " with ", header.entries,
                                   " entries takes more than ", max_bytes, " bytes"));
  }
  // "1 1\n" or "1 1 1\n"; the last line may lack its end.
  const int64_t least = header.field == Field::kPattern ? 4 : 6;
  if (header.entries > (reader.max_text() + 1) / least) {
    return FieldError(absl::StatusCode::kDataLoss, "data",
                      absl::StrCat("the file is too short for the ", header.entries, " entries of its header"));
  }
  return absl::OkStatus();
}

struct Entry {
  int32_t row, column;
  double value = 1;
};

absl::Status ParseEntry(absl::string_view line, int64_t number, const Header& header, Entry* entry) {
  int32_t row = 0, column = 0;
  if (!Parse(TakeWord(line), &row)) return BadLine(number, "row is not a number");
  if (!Parse(TakeWord(line), &column)) return BadLine(number, "column is not a number");
  if (row < 1 || row > header.rows) return BadLine(number, absl::StrCat("row ", row, " is not in 1 to ", header.rows));
  if (column < 1 || column > header.columns) {
    return BadLine(number, absl::StrCat("column ", column, " is not in 1 to ", header.columns));
  }
  entry->row = row - 1;
  entry->column = column - 1;
  if (header.field == Field::kReal && !Parse(TakeWord(line), &entry->value)) {
    return BadLine(number, "value is not a number that float64 holds");
  }
  if (header.field == Field::kInteger) {
    int64_t value = 0;
    if (!Parse(TakeWord(line), &value)) return BadLine(number, "value is not an integer of 64 bits");
    entry->value = static_cast<double>(value);
  }
  if (!TakeWord(line).empty()) return BadLine(number, "more words than the header's field has");
  if (header.symmetry == Symmetry::kSkew && row == column) {
    return BadLine(number, "an entry on the diagonal of a skew-symmetric matrix");
  }
  return absl::OkStatus();
}

void Append(const Entry& entry, Symmetry symmetry, HostCoo* coo) {
  const auto push = [coo](int32_t row, int32_t column, double value) {
    coo->row_indices.push_back(row);
    coo->column_indices.push_back(column);
    coo->values.push_back(value);
  };
  push(entry.row, entry.column, entry.value);
  if (symmetry == Symmetry::kGeneral || entry.row == entry.column) return;
  push(entry.column, entry.row, symmetry == Symmetry::kSkew ? -entry.value : entry.value);
}

absl::Status ReadEntries(LineReader& reader, const Header& header, HostCoo* coo) {
  int64_t read = 0;
  absl::string_view line;
  while (true) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    absl::string_view rest = line;
    if (TakeWord(rest).empty()) continue;
    if (read == header.entries) {
      return BadLine(reader.number(), absl::StrCat("more than the ", header.entries, " entries of the header"));
    }
    Entry entry;
    INTRAWARP_RETURN_IF_ERROR(ParseEntry(line, reader.number(), header, &entry));
    Append(entry, header.symmetry, coo);
    ++read;
  }
  if (read == header.entries) return absl::OkStatus();
  return FieldError(absl::StatusCode::kDataLoss, "data",
                    absl::StrCat(read, " entries; the header says ", header.entries));
}

// Appends the entries of row `r`, a line each.
template <typename T>
void AppendRow(const HostCsr<T>& matrix, int32_t r, std::string* text) {
  char number[32];
  for (int64_t i = matrix.row_offsets[r]; i < matrix.row_offsets[r + 1]; ++i) {
    const char* end = std::to_chars(number, number + sizeof(number), matrix.values[i]).ptr;
    absl::StrAppend(text, int64_t{r} + 1, " ", int64_t{matrix.column_indices[i]} + 1, " ",
                    absl::string_view(number, end - number), "\n");
  }
}

}  // namespace

absl::StatusOr<HostCoo> ReadMatrixMarket(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> reader, LineReader::Open(path));
  INTRAWARP_ASSIGN_OR_RETURN(const Header header, ReadHeader(*reader));
  INTRAWARP_RETURN_IF_ERROR(CheckMemory(header, *reader, max_bytes));
  HostCoo coo;
  coo.rows = header.rows;
  coo.columns = header.columns;
  if (!reader->compressed()) {
    const int64_t entries = header.entries * (header.symmetry == Symmetry::kGeneral ? 1 : 2);
    coo.row_indices.reserve(entries);
    coo.column_indices.reserve(entries);
    coo.values.reserve(entries);
  }
  INTRAWARP_RETURN_IF_ERROR(ReadEntries(*reader, header, &coo));
  return coo;
}

template <typename T>
absl::Status WriteMatrixMarket(const std::string& path, const HostCsr<T>& matrix) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsr(matrix));
  using Coding = AtomicFile::Coding;
  const Coding coding = absl::EndsWith(path, ".gz") ? Coding::kGzip : Coding::kPlain;
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, coding));
  std::string text = absl::StrCat("%%MatrixMarket matrix coordinate real general\n", matrix.rows, " ", matrix.columns,
                                  " ", matrix.entries(), "\n");
  for (int32_t r = 0; r < matrix.rows; ++r) {
    AppendRow(matrix, r, &text);
    if (text.size() < kBufferBytes) continue;
    INTRAWARP_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
    text.clear();
  }
  INTRAWARP_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  return file.Commit();
}

template absl::Status WriteMatrixMarket(const std::string&, const HostCsr<float>&);
template absl::Status WriteMatrixMarket(const std::string&, const HostCsr<double>&);

}  // namespace intrawarp::io
