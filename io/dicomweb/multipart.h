// SPDX-License-Identifier: Apache-2.0
// MultipartReader: takes a MIME multipart body (RFC 2046, section 5.1) apart as its bytes arrive, in pieces of any
// size.
//
// Bytes of a part go to the sink as soon as they cannot be the beginning of a delimiter, so that the reader holds no
// more than a piece and a delimiter. It is stricter than RFC 2046 where leniency could hide damage: a delimiter must be
// followed by blanks and CRLF or by "--", and a part whose Content-Length says otherwise is refused.
//
// Errors: DATA_LOSS "multipart: ..." for a body that is broken or cut short, RESOURCE_EXHAUSTED "multipart: ..." above
// a limit, and those of the sink. After an error the reader takes no more. Messages hold no text of the body.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_IO_DICOMWEB_MULTIPART_H_
#define INTRAWARP_IO_DICOMWEB_MULTIPART_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {

class PartSink {
 public:
  virtual ~PartSink() = default;
  // A part begins. `content_type` is empty where its header has none.
  virtual absl::Status Begin(absl::string_view content_type) = 0;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // The part is whole.
  virtual absl::Status End() = 0;
};

struct MultipartLimits {
  int64_t max_part_bytes = int64_t{4} << 30;
  int64_t max_parts = 100000;
  // A part's header has no more bytes.
  size_t max_header_bytes = 16 << 10;
  // The text before the first delimiter and the text behind the last one have no more together.
  int64_t max_surplus_bytes = 64 << 10;
};

class MultipartReader {
 public:
  // `sink` outlives it. INVALID_ARGUMENT "content_type: ..." for a boundary that RFC 2046 does not allow.
  static absl::StatusOr<MultipartReader> Create(absl::string_view boundary, const MultipartLimits& limits,
                                                PartSink& sink);

  absl::Status Take(absl::string_view bytes);
  // No more bytes come: DATA_LOSS unless the closing delimiter has come.
  absl::Status Finish();
  // Whole ones.
  int64_t parts() const { return parts_; }

 private:
  enum class State { kPreamble, kDelimiter, kHeader, kBody, kEpilogue };

  MultipartReader(std::string delimiter, const MultipartLimits& limits, PartSink& sink)
      : delimiter_(std::move(delimiter)), limits_(limits), sink_(&sink) {}
  absl::Status Advance();
  absl::StatusOr<bool> Step();
  absl::StatusOr<bool> SkipPreamble();
  absl::StatusOr<bool> EndDelimiter();
  absl::StatusOr<bool> ReadHeader();
  absl::StatusOr<bool> ReadBody();
  absl::StatusOr<bool> SkipEpilogue();
  absl::Status PassOver(size_t bytes);
  absl::Status Emit(size_t bytes);
  absl::string_view rest() const { return absl::string_view(buffer_).substr(begin_); }

  std::string delimiter_;  // with its CRLF and hyphens
  MultipartLimits limits_;
  PartSink* sink_;
  State state_ = State::kPreamble;
  // Bytes that came; those before `begin_` are done with. It begins as if a CRLF had come, which the first delimiter
  // may lack.
  std::string buffer_ = "\r\n";
  size_t begin_ = 0;
  int64_t parts_ = 0;
  int64_t surplus_ = 0;
  int64_t part_bytes_ = 0;
  int64_t announced_bytes_ = -1;  // the part's Content-Length; negative: none
  absl::Status status_;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_MULTIPART_H_
