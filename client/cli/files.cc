// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "io/file/file.h"
#include "io/format/grid_files.h"

namespace intrawarp::cli {
namespace {

// The digits at the beginning, without zeros in front.
absl::string_view TakeNumber(absl::string_view* text) {
  size_t length = 0;
  while (length < text->size() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[length]))) ++length;
  absl::string_view digits = text->substr(0, length);
  text->remove_prefix(length);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

}  // namespace

bool HasVolumeSuffix(const std::string& path) {
  const std::vector<std::string>& suffixes = io::GridSuffixes();
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](const std::string& suffix) { return absl::EndsWith(path, suffix); });
}

bool HasMatrixSuffix(const std::string& path) { return absl::EndsWith(path, ".txt"); }
bool HasItkSuffix(const std::string& path) {
  return std::any_of(ItkSuffixes().begin(), ItkSuffixes().end(),
                     [&](const std::string& suffix) { return absl::EndsWith(path, suffix); });
}

const std::vector<std::string>& ItkSuffixes() {
  static const auto* const suffixes = new std::vector<std::string>{".tfm", ".h5", ".hdf5", ".hdf"};
  return *suffixes;
}

absl::Status CheckOutput(const ParsedFlags& flags, const std::string& name, const std::vector<std::string>& suffixes) {
  if (!flags.Has(name)) return absl::OkStatus();
  const std::string path = flags.String(name);
  const bool known = suffixes.empty() || std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& suffix) {
                       return absl::EndsWith(path, suffix);
                     });
  if (!known) {
    return UsageError(absl::InvalidArgumentError(
        absl::StrCat("--", name, ": must end in ", absl::StrJoin(suffixes, " or "), ": ", path)));
  }
  const std::string plain = path.substr(0, path.find_last_not_of('/') + 1);  // of a folder that is to be made
  const std::filesystem::path folder = std::filesystem::path(plain).parent_path();
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--", name, ": there is no folder ", folder.string()));
}

bool NaturalLess(absl::string_view a, absl::string_view b) {
  const absl::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(a[0])) ||
        !absl::ascii_isdigit(static_cast<unsigned char>(b[0]))) {
      if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
      a.remove_prefix(1);
      b.remove_prefix(1);
      continue;
    }
    const absl::string_view m = TakeNumber(&a), n = TakeNumber(&b);
    if (m.size() != n.size()) return m.size() < n.size();
    if (m != n) return m < n;
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

absl::StatusOr<std::vector<std::string>> VolumesInFolder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (HasVolumeSuffix(entry->path().string())) paths.push_back(entry->path().string());
  }
  if (error) return io::FileError(folder, error.value());
  if (paths.empty())
    return absl::NotFoundError(absl::StrCat(folder, ": no volumes (", absl::StrJoin(io::GridSuffixes(), ", "), ")"));
  std::sort(paths.begin(), paths.end(), NaturalLess);
  return paths;
}

std::string FileName(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string Stem(const std::string& path) {
  std::string name = FileName(path);
  for (const std::string& suffix : io::GridSuffixes()) {
    if (absl::EndsWith(name, suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return name;
}

}  // namespace intrawarp::cli
