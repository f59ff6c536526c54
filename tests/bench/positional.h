// SPDX-License-Identifier: Apache-2.0
// The arguments of a bench that has no flags.
#ifndef INTRAWARP_TESTS_BENCH_POSITIONAL_H_
#define INTRAWARP_TESTS_BENCH_POSITIONAL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace intrawarp {

// The arguments of main as whole numbers above 0. INVALID_ARGUMENT names one that is not, and the first beyond `most`.
inline absl::StatusOr<std::vector<int>> PositiveArguments(int argc, char** argv, int most) {
  std::vector<int> numbers;
  for (int i = 1; i < argc; ++i) {
    int number = 0;
    if (!absl::SimpleAtoi(argv[i], &number) || number < 1) {
      return absl::InvalidArgumentError(absl::StrCat(argv[i], " is not a whole number above 0"));
    }
    if (i > most) return absl::InvalidArgumentError(absl::StrCat(argv[i], " is one argument too many"));
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_POSITIONAL_H_
