// SPDX-License-Identifier: Apache-2.0
// A report as a PDF: a title, a verdict, tables of names and values, and a picture. A4, as many pages as it takes.
#ifndef INTRAWARP_IO_PICTURE_REPORT_PDF_H_
#define INTRAWARP_IO_PICTURE_REPORT_PDF_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "io/picture/png.h"

namespace intrawarp::io {

struct ReportSection {
  std::string heading;
  std::vector<std::pair<std::string, std::string>> rows;  // name, value
};

struct ReportDocument {
  std::string title;
  // In large letters, on a light ground that is not the only sign of what it says.
  std::string verdict;
  bool is_good = false;
  // Below the verdict, a line each.
  std::vector<std::string> remarks;
  std::vector<ReportSection> sections;
  // On a page of its own.
  std::optional<Picture> picture;
  absl::Time time;  // of its making, in the file's description
};

// Texts are ASCII; other bytes and control characters are shown as "?". Long lines are broken between words.
// RESOURCE_EXHAUSTED "picture: ..." without memory, INTERNAL "picture: ..." for any other failure of cairo's.
// Thread-safe.
absl::StatusOr<std::string> RenderReportPdf(const ReportDocument& document);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_REPORT_PDF_H_
