// SPDX-License-Identifier: Apache-2.0
// Prints what every DICOM item of the public test data is read as, or why not, as the table of docs/use/dicom.md:
//   dicom_table DATA
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/io/dicom/dicom_items.h"

namespace {

using intrawarp::io::ItemResult;

std::string Row(const ItemResult& item) {
  std::string row = absl::StrCat("| ", item.name.substr(item.name.find('/') + 1), " | ");
  if (!item.volume.ok()) {
    return absl::StrCat(row, absl::StatusCodeToString(item.volume.status().code()), " | ",
                        std::string(item.volume.status().message()), " | | |\n");
  }
  const intrawarp::Geometry& g = item.volume->volume.geometry;
  absl::StrAppendFormat(&row, "read | %s, %.4gx%.4gx%.4g mm%s", intrawarp::SizeString(g), g.spacing.x, g.spacing.y,
                        g.spacing.z, item.volume->notes.empty() ? "" : "; ");
  absl::StrAppend(&row, absl::StrJoin(item.volume->notes, "; "));
  if (!item.difference) return row + " | | |\n";
  absl::StrAppendFormat(&row, " | %.3g | %.2g (%s) |\n", item.difference->intensity, item.difference->geometry_mm,
                        item.difference->reference);
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: dicom_table DATA\n", stderr);
    return 2;
  }
  const std::filesystem::path scratch =
      std::filesystem::temp_directory_path() / absl::StrCat("intrawarp_dicom_table_", getpid());
  std::filesystem::create_directories(scratch);
  std::fputs(
      "| item | status | volume, or why not | largest difference of a voxel | of its place, mm "
      "|\n|---|---|---|---|---|\n",
      stdout);
  for (const ItemResult& item : intrawarp::io::ReadItems(argv[1], scratch.string()))
    std::fputs(Row(item).c_str(), stdout);
  std::filesystem::remove_all(scratch);
  return 0;
}
