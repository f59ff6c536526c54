// SPDX-License-Identifier: Apache-2.0
// The names of files that commands read and write, told apart by their suffix. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_FILES_H_
#define INTRAWARP_CLIENT_CLI_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {

bool HasVolumeSuffix(const std::string& path);  // io::GridSuffixes()
bool HasMatrixSuffix(const std::string& path);  // .txt
bool HasItkSuffix(const std::string& path);     // ItkSuffixes()

// The suffixes that transforms in ITK's form are written with.
const std::vector<std::string>& ItkSuffixes();

// Before work is begun for a file that the flag names, if it is given: a wrong command line (UsageError) when the name
// has none of the suffixes (none given: any will do), NOT_FOUND when its folder does not exist.
absl::Status CheckOutput(const ParsedFlags& flags, const std::string& name,
                         const std::vector<std::string>& suffixes = {});

// Whether a name comes before another one as people count: f8 before f16. Runs of digits compare as numbers, whatever
// their length; all else byte by byte, and equal numbers by their zeros.
bool NaturalLess(absl::string_view a, absl::string_view b);

// The volumes in a folder, as paths, in the natural order of their names. NOT_FOUND and the like for a folder that
// cannot be read, and NOT_FOUND for one without volumes.
absl::StatusOr<std::vector<std::string>> VolumesInFolder(const std::string& folder);

// "frame_001" of "/data/frame_001.nii.gz".
std::string Stem(const std::string& path);
std::string FileName(const std::string& path);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_FILES_H_
